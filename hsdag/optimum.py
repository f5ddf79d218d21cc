"""Language models of optimum-intel over several devices: ``OVModelForCausalLM`` placed and compiled in memory.

The model generates as before, by ``generate`` and pipelines. It forgets its placement where optimum-intel compiles it
anew: after ``to``, ``reshape``, ``half`` or ``clear_requests`` call ``use_placement`` again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import openvino as ov

from hsdag.api import compile_model
from hsdag.api import place as place_model
from hsdag.ir.errors import ModelError
from hsdag.ir.placement.placement import Placement

if TYPE_CHECKING:
    from optimum.intel import OVModelForCausalLM

    from hsdag.placing.result import PlaceResult

TOKENS = "128,1+128@4,1+1024@4"
"""What a model is placed for: a prompt of 128 tokens, and one more token behind 128 and behind 1,024."""


def place(
    model: OVModelForCausalLM, devices: str | Sequence[str] | None = None, *, tokens: str = TOKENS, **options: Any
) -> PlaceResult:
    """Find a placement of the model by measurement, and have it used; ``options`` are those of ``hsdag.place``.

    ``tokens`` are the inferences to place for, as ``hsdag place --tokens`` takes them. Raises ModelError for a model
    that has no network in memory, and what ``hsdag.place`` does.
    """
    result = place_model(_network(model).clone(), devices, tokens=tokens, **options)
    use_placement(model, result.placement)
    return result


def use_placement(model: OVModelForCausalLM, placement: Placement, core: ov.Core | None = None) -> None:
    """Compile the model in memory as a placement says, and have it generate that way.

    Under HETERO its ``ov_config`` holds beside the properties of the devices. Raises PlacementError where the placement
    is for another model, DeviceError where a device is absent, and ModelError for a model without a network in memory.
    """
    network = _network(model)
    properties = dict(model.ov_config) if placement.executor == "hetero" else None
    model.request = compile_model(network, placement, core or ov.Core(), properties).create_infer_request()


def _network(model: OVModelForCausalLM) -> ov.Model:
    network = model.model
    if not isinstance(network, ov.Model):
        kind = type(network).__name__
        raise ModelError(f"the model holds a {kind} and no network to place: load it without compile_only=True")
    return network
