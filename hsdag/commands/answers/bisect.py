"""Of ``hsdag bisect``."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.commands.bisect import Probe


class Answer(TypedDict):
    """What was found out of a model on two devices, of which the second one is the reference."""

    model: str
    devices: tuple[str, str]
    tolerance: float
    whole: Probe
    num_ops: int
    first: Probe | None
    alone: Probe | None
    reads: list[Probe]
    probes: list[Probe]
    is_own: bool | None
    sentences: list[str]
