"""Of ``hsdag inspect``."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class Size(TypedDict):
    """A coarsened graph."""

    nodes: int
    edges: int


class Answer(TypedDict):
    """A model's graph; ``unsupported`` has ops by device, where devices were asked."""

    name: str
    fingerprint: str
    dynamic_inputs: list[str]
    nodes: int
    edges: int
    mean_degree: float
    flops: float
    weight_bytes: int
    op_histogram: dict[str, int]
    coarsening: dict[str, Size]
    data_shapes: list[str]
    unsupported: NotRequired[dict[str, list[str]]]
