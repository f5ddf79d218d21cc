"""The models to be placed: an offline zoo of benchmark networks with seeded random weights."""

from hsdag.models.registry import build_model, find_model, list_models, save_model_files
from hsdag.models.spec import ModelInput, ModelSpec

__all__ = ["ModelInput", "ModelSpec", "build_model", "find_model", "list_models", "save_model_files"]
