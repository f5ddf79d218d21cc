"""The models to be placed: an offline zoo of networks with seeded random weights, and workloads without a file."""

from hsdag.models.expression import Expression, parse_expression
from hsdag.models.networks import DecoderSizes, ModelSpec, StatefulSpec
from hsdag.models.registry import (
    build_model,
    check_model_name,
    find_model,
    find_workload,
    is_workload,
    list_language_models,
    list_models,
    list_workloads,
    save_model_files,
)
from hsdag.models.workload import Workload

__all__ = [
    "DecoderSizes",
    "Expression",
    "ModelSpec",
    "StatefulSpec",
    "Workload",
    "build_model",
    "check_model_name",
    "find_model",
    "find_workload",
    "is_workload",
    "list_language_models",
    "list_models",
    "list_workloads",
    "parse_expression",
    "save_model_files",
]
