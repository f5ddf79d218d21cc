"""A placed model in parts: models of one device each, and which output of which part feeds which input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import openvino as ov

from hsdag.ir.placement import DeviceRecord

MODEL_INPUT = -1
"""In place of a part: the caller."""


@dataclass(frozen=True)
class Feed:
    """Where a tensor comes from: the output ``name`` of a part, or the model's input ``name``."""

    part: int
    name: str

    @property
    def is_model_input(self) -> bool:
        """Whether the caller gives it."""
        return self.part == MODEL_INPUT


@dataclass(frozen=True, eq=False)
class Part:
    """A convex piece of a model that runs on one device.

    Every input and output of ``model`` has one name; ``feeds`` says by the name of an input what it reads. ``ops`` are
    the ops placed on the device that the part computes, ``copies`` those that are placed elsewhere and computed here
    too, all by their friendly names. A part that ``has_state`` keeps variables between inferences.
    """

    model: ov.Model
    device: DeviceRecord
    feeds: Mapping[str, Feed]
    ops: tuple[str, ...]
    copies: tuple[str, ...] = ()
    has_state: bool = False


@dataclass(frozen=True, eq=False)
class PlacedParts:
    """Parts in an order in which they can run; by name, the model's inputs that are read, and all its outputs.

    With every input and output comes its port in the whole model.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: Mapping[str, ov.Output]
    outputs: Mapping[str, tuple[ov.Output, Feed]]
