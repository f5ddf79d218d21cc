"""ModelSpec: what one model of the zoo is called, takes, answers and weighs, and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import openvino as ov
    from torch import nn


@dataclass(frozen=True)
class ModelInput:
    """One input: its name, its fixed shape, and its element type in OpenVINO's short form."""

    name: str
    shape: tuple[int, ...]
    element_type: Literal["f32", "i64"]


@dataclass(frozen=True)
class ModelSpec:
    """One model of the zoo.

    ``num_parameters`` counts the trainable weights. ``make_network`` takes a seed and returns the network
    with random weights, in evaluation mode; its forward takes the inputs in order and returns one tensor for
    each name in ``outputs``.
    """

    name: str
    summary: str
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    num_parameters: int
    is_tiny: bool
    make_network: Callable[[int], nn.Module]

    def build(self, seed: int = 0) -> ov.Model:
        """The model with weights drawn from ``seed``: float constants in fp16, each followed by a Convert."""
        from hsdag.models.convert import compressed, to_openvino

        return compressed(to_openvino(self, self.make_network(seed)))
