"""Models to be placed: an offline zoo of networks with seeded random weights, and workloads that need no model file."""

from hsdag.models.expression import Expression, parse_expression
from hsdag.models.networks import LANGUAGE_MODELS, MODELS, ModelSpec
from hsdag.models.registry import (
    WORKLOADS,
    build_model,
    check_model_name,
    find_workload,
    save_model_files,
)
from hsdag.models.sizes import DecoderSizes
from hsdag.models.workload import Workload

__all__ = [
    "LANGUAGE_MODELS",
    "MODELS",
    "WORKLOADS",
    "DecoderSizes",
    "Expression",
    "ModelSpec",
    "Workload",
    "build_model",
    "check_model_name",
    "find_workload",
    "parse_expression",
    "save_model_files",
]
