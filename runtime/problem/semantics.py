"""Semantics: how a simulated machine executes ops and moves results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hsdag.base.errors import OptionError, option
from hsdag.runtime.objectives import Objective, Quantity


class Execution(Enum):
    """Whether devices work side by side."""

    WORK_CONSERVING = "work-conserving"  # DOPPLER, Algorithm 1: no device idles while an op is ready for it
    SEQUENTIAL = "sequential"  # HETERO: one subgraph after another


class Order(Enum):
    """Which of the ready ops a free device takes; ties always go to the smaller op index."""

    PRIORITY = "priority"  # the smallest given rank
    FIFO = "fifo"  # the op whose last input arrived first
    CRITICAL_PATH = "critical-path"  # the longest path to the end
    DEPTH_FIRST = "depth-first"  # the op whose last input arrived last
    RANDOM = "random"  # the smallest of the ranks drawn with the seed


class LinkSharing(Enum):
    """What transfers wait for."""

    INDEPENDENT = "independent"  # nothing: any number at once
    EGRESS = "egress"  # the sender's one bus; a transfer serves all destinations (Placeto, A.5)
    CHANNEL = "channel"  # the one channel of the ordered pair of devices
    BLOCKING = "blocking"  # both devices, which it occupies; for the throughput objective alone


@dataclass(frozen=True)
class Semantics:
    """Rules of a simulation; ``order`` None is PRIORITY with ranks, else FIFO; ``seed`` draws the ranks of RANDOM."""

    execution: Execution = Execution.WORK_CONSERVING
    order: Order | None = None
    links: LinkSharing = LinkSharing.INDEPENDENT
    seed: int = 0

    def check(self, objective: Objective) -> None:
        """Raise OptionError if an objective is not defined under these semantics."""
        if self.links is LinkSharing.BLOCKING and objective.quantities != (Quantity.PERIOD,):
            raise OptionError(
                f"{option('links')} blocking is for {option('objective')} throughput only; choose other links"
            )

    def named(self) -> dict[str, str]:
        """Return the values by the names of the options."""
        return {"execution": self.execution.value, "order": (self.order or Order.FIFO).value, "links": self.links.value}
