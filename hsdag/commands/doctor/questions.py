"""Questions to the examining process, within a time; an answer that does not come is a finding."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hsdag.commands.doctor.findings import Finding, danger, warning
from hsdag.ir.errors import HsdagError
from hsdag.ir.processes import CandidateFailed, Request, WorkerClient, WorkerDefect

A = TypeVar("A")

ANSWER_S = 60.0
"""How long a device may take to answer a question that compiles nothing; it then counts as hanging."""

LEAST_S = 10.0
"""What a question that compiles gets at the least, however little of the budget is left."""


class Questions:
    """Asks a client's process, which is started again after a device crashed or hung."""

    def __init__(self, client: WorkerClient, budget_s: float, on_step: Callable[[str], None]) -> None:
        self.findings: list[Finding] = []
        self._client = client
        self._end_s = time.monotonic() + budget_s
        self._on_step = on_step

    def ask(self, about: str, doing: str, request: Request[A], *, compiles: bool = True) -> A | None:
        """The answer; None where there is none. What compiles may take all that is left of the budget."""
        self._on_step(f"{about}: {doing}")
        limit_s, begin_s = ANSWER_S, time.monotonic()
        if compiles:
            limit_s = max(self._end_s - begin_s, LEAST_S)
        try:
            return self._client.call(request, limit_s)
        except CandidateFailed as failure:
            if compiles and failure.lost_worker and time.monotonic() - begin_s >= limit_s:
                text = f"{doing} was not finished in the {limit_s:.0f} s that were left; compiling may take longer: "
                self.findings.append(warning(about, text + "raise --budget"))
            else:
                self.findings.append(danger(about, f"{doing} failed: {failure.reason}"))
        except (HsdagError, WorkerDefect) as error:
            self.findings.append(danger(about, f"{doing} failed: {error}"))
        return None
