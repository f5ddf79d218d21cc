"""Of ``hsdag models build``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Model(TypedDict):
    """A model that was built."""

    name: str
    seed: int
    path: str


class Workload(TypedDict):
    """A problem file that was built; ``source`` says where its costs come from."""

    name: str
    path: str
    ops: int
    edges: int
    devices: int
    source: str


Answer = Model | Workload
