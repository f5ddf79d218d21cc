"""ModelSpec: what one model of the zoo is called, takes, answers and weighs, and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

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


def seeded(module: str, network: str, sizes: Any) -> Callable[[int], Any]:
    """From a seed to the class ``network`` of ``hsdag.models.MODULE`` in these sizes, with random weights.

    Only the call imports torch.
    """

    def make(seed: int) -> Any:
        from hsdag.models.weights import random_network

        return random_network(lambda: getattr(import_module(f"hsdag.models.{module}"), network)(sizes), seed)

    return make


def image_model(
    name: str, summary: str, size: int, make_network: Callable[[int], Any], num_parameters: int, is_tiny: bool = False
) -> ModelSpec:
    """A network from images [1, 3, size, size] to logits."""
    return ModelSpec(
        name=name,
        summary=f"{summary}, {size} x {size}",
        inputs=(ModelInput("images", (1, 3, size, size), "f32"),),
        outputs=("logits",),
        num_parameters=num_parameters,
        is_tiny=is_tiny,
        make_network=make_network,
    )
