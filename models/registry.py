"""The zoo by name: listing, building and saving its models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import ModelError, OptionError
from hsdag.models import bert, inception, llama_decoder, resnet
from hsdag.models.spec import ModelSpec
from hsdag.models.workload_registry import list_workloads

if TYPE_CHECKING:
    import openvino as ov

MAX_SEED = 2**63 - 1
_FAMILIES = (resnet, inception, bert, llama_decoder)
_SPECS: dict[str, ModelSpec] = {spec.name: spec for family in _FAMILIES for spec in family.SPECS}


def list_models() -> tuple[ModelSpec, ...]:
    """Every model of the zoo, benchmark models before tiny ones; does not import torch."""
    return tuple(sorted(_SPECS.values(), key=lambda spec: spec.is_tiny))


def find_model(name: str) -> ModelSpec:
    """The model called ``name``; raises ModelError naming the choices."""
    if name not in _SPECS:
        choices = ", ".join(spec.name for spec in list_models())
        workloads = ", ".join(spec.name for spec in list_workloads())
        raise ModelError(f"the zoo has no model {name!r}; choose one of {choices}; workloads are {workloads}")
    return _SPECS[name]


def build_model(name: str, seed: int = 0) -> ov.Model:
    """The zoo's model ``name`` as read from its files, in memory; one seed always gives the same weights.

    Raises ModelError for an unknown name, OptionError for a seed outside 0..2**63-1.
    """
    spec = find_model(name)
    _check_seed(seed)
    return spec.build(seed)


def save_model_files(name: str, path: str | Path, seed: int = 0) -> Path:
    """Build the zoo's model ``name``, write ``path`` (ending in .xml) and the .bin beside it, return ``path``.

    Raises ModelError for an unknown name, OptionError for another suffix or a seed outside 0..2**63-1,
    OutputError when the files cannot be written.
    """
    spec = find_model(name)
    _check_seed(seed)
    target = Path(path)
    if target.suffix != ".xml":
        raise OptionError(f"the model's file must end in .xml (the weights go to .bin beside it), got {str(path)!r}")
    from hsdag.ir.export.base import write_ir
    from hsdag.models.convert import check_target, to_openvino

    check_target(target)
    write_ir(to_openvino(spec, spec.make_network(seed)), target, compress_to_fp16=True)
    return target


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise OptionError(f"the seed must lie in 0..2**63-1, got {seed}")
