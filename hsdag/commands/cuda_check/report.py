"""CudaReport: what the self-check found, as values, as text, as JSON and as a Markdown table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    UNTESTED = "not testable here"


@dataclass(frozen=True)
class Item:
    """One check: what it is about, how it ended, and what was found, or why it failed or could not be made."""

    name: str
    ending: Ending
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class CudaReport:
    """All checks in order; ``devices`` are the ones that they ran on, ``machine`` says what is installed here."""

    devices: tuple[str, ...]
    machine: Mapping[str, str]
    is_on_gpu: bool
    items: tuple[Item, ...]

    @property
    def failed(self) -> tuple[Item, ...]:
        """The checks that failed."""
        return tuple(item for item in self.items if item.ending is Ending.FAIL)

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        count = Counter(item.ending for item in self.items)
        counts = ", ".join(f"{count[ending]} {ending.value}" for ending in Ending if count[ending])
        if self.is_on_gpu:
            return f"Of {len(self.items)} checks on {', '.join(self.devices)}: {counts}."
        return (
            f"Of {len(self.items)} checks: {counts}. No CUDA device was used: the engine ran on logical devices of the "
            f"CPU ({', '.join(self.devices)}), whose figures say nothing of a GPU."
        )

    def document(self) -> dict[str, object]:
        """The report as JSON values."""
        items = [
            {"name": item.name, "ending": item.ending.value, "detail": item.detail, "seconds": item.seconds}
            for item in self.items
        ]
        return {
            "devices": list(self.devices),
            "machine": dict(self.machine),
            "is_on_gpu": self.is_on_gpu,
            "sentence": self.sentence,
            "items": items,
        }

    def text(self) -> str:
        """The report for a terminal: one line for each check."""
        width = max((len(item.name) for item in self.items), default=0)
        ending = max(len(ending.value) for ending in Ending)
        lines = [f"{item.name:<{width}}  {item.ending.value:<{ending}}  {item.detail}" for item in self.items]
        return "\n".join([*lines, self.sentence])

    def markdown(self) -> str:
        """The report as a table to paste into an issue."""
        versions = ", ".join(f"{name} {version}" for name, version in self.machine.items())
        rows = [f"| {_cell(item.name)} | {item.ending.value} | {_cell(item.detail)} |" for item in self.items]
        return "\n".join([self.sentence, versions, "", "| check | outcome | detail |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
