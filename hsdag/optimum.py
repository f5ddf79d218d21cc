"""Run language models of optimum-intel on several devices: place and compile ``OVModelForCausalLM`` in memory.

The model generates as before, with ``generate`` and pipelines. It loses its placement when optimum-intel compiles it
again: after ``to``, ``reshape``, ``half`` or ``clear_requests``, call ``use_placement`` again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import openvino as ov

from hsdag.api import compile_model
from hsdag.api import place as place_model
from hsdag.base.errors import ModelError
from hsdag.ir.placement.placement import Placement

if TYPE_CHECKING:
    from optimum.intel import OVModelForCausalLM

    from hsdag.commands.place.result import PlaceResult

TOKENS = "128,1+128@4,1+1024@4"
"""Inferences to place for by default: a prompt of 128 tokens, and one token after 128 and after 1,024 tokens."""


def place(
    model: OVModelForCausalLM, devices: str | Sequence[str] | None = None, *, tokens: str = TOKENS, **options: Any
) -> PlaceResult:
    """Find a placement of the model by measurement and use it; ``options`` are those of ``hsdag.place``.

    ``tokens`` gives the inferences to place for, as ``hsdag place --tokens`` does. Raises ModelError for a model
    without a network in memory, and whatever ``hsdag.place`` raises.
    """
    result = place_model(_network(model).clone(), devices, tokens=tokens, **options)
    use_placement(model, result.placement)
    return result


def use_placement(model: OVModelForCausalLM, placement: Placement, core: ov.Core | None = None) -> None:
    """Compile the model in memory according to a placement, and use the result to generate.

    Under HETERO the model's ``ov_config`` applies in addition to the properties of the devices. Raises PlacementError
    if the placement is for another model, DeviceError if a device is absent, and ModelError for a model without a
    network in memory.
    """
    network = _network(model)
    properties = dict(model.ov_config) if placement.executor == "hetero" else None
    model.request = compile_model(network, placement, core or ov.Core(), properties).create_infer_request()


def _network(model: OVModelForCausalLM) -> ov.Model:
    """Return the model's network. Raises ModelError if there is none in memory."""
    network = model.model
    if not isinstance(network, ov.Model):
        kind = type(network).__name__
        raise ModelError(f"the model holds a {kind} and no network to place: load it without compile_only=True")
    return network
