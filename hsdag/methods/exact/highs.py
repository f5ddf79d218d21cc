"""Solving linear programs with HiGHS: incumbents and bounds are reported as they come."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.exact.assignment import LinearModel
from hsdag.methods.exact.solving import POLL_S, Answer, Program
from hsdag.methods.incumbent import Limits, Status

TOLERANCE = 1e-6
"""Share by which HiGHS may be wrong: its bounds are lowered by it."""
GRACE_S = 2.0
"""What HiGHS may take beyond its limit before it is ended."""


def highs_program(
    model: LinearModel,
    unit_s: float,
    on_solution: Callable[[FloatArray], None],
    hint: tuple[list[int], list[float]] | None = None,
) -> Program:
    """A model whose costs are in ``unit_s``; ``on_solution`` and ``hint`` as in ``solve_linear``."""
    return Program(lambda limits, on_wait: solve_linear(model, limits, on_solution, on_wait, hint), unit_s, TOLERANCE)


def solve_linear(
    model: LinearModel,
    limits: Limits,
    on_solution: Callable[[FloatArray], None] = lambda _: None,
    on_wait: Callable[[float], None] = lambda _: None,
    hint: tuple[list[int], list[float]] | None = None,
) -> Answer[FloatArray]:
    """Minimise ``model``; ``hint`` are variables with values to begin with, a solution the values of all variables.

    Both callables run in the calling thread; exceptions of theirs end HiGHS and reach the caller. Raises
    SearchError when HiGHS dies.
    """
    command = [sys.executable, "-m", "hsdag.methods.exact.highs_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            return _listen(process, _request(model, limits, hint), limits, on_solution, on_wait)
        finally:
            process.kill()


def _listen(
    process: subprocess.Popen[bytes],
    request: dict[str, Any],
    limits: Limits,
    on_solution: Callable[[FloatArray], None],
    on_wait: Callable[[float], None],
) -> Answer[FloatArray]:
    events: queue.Queue[tuple[Any, ...]] = queue.Queue()
    thread = threading.Thread(target=_converse, args=(process, request, events), daemon=True)
    thread.start()
    values, bound, deadline = None, -np.inf, time.monotonic() + limits.seconds + GRACE_S
    while True:
        try:
            kind, *content = events.get(timeout=POLL_S)
        except queue.Empty:
            on_wait(bound)
            kind, content = ("wait", []) if time.monotonic() < deadline else ("end", ["Time limit reached", bound])
        if kind == "solution":
            values = np.asarray(content[0], dtype=np.float64)
            on_solution(values)
        elif kind == "bound":
            bound = content[0]
        elif kind == "end":
            if content[0] == "Infeasible":
                return Answer(Status.INFEASIBLE, np.inf)
            ended = Status.TIME_LIMIT if values is None else Status.FEASIBLE
            ending = Status.OPTIMAL if content[0] == "Optimal" else ended
            return Answer(ending, max(float(content[1]), bound), solution=values)
        elif kind == "died":
            raise SearchError("HiGHS ended without an answer; use --method cpsat, which solves the same problem")


def _converse(process: subprocess.Popen[bytes], request: dict[str, Any], events: queue.Queue[tuple[Any, ...]]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request, default=lambda array: array.tolist()).encode())
        process.stdin.close()
        for line in process.stdout:
            events.put(tuple(json.loads(line)))
    except (OSError, ValueError):
        pass
    events.put(("died",))


def _request(model: LinearModel, limits: Limits, hint: tuple[list[int], list[float]] | None) -> dict[str, Any]:
    names = ("low", "high", "cost", "row_low", "row_high", "value")
    request: dict[str, Any] = {name: np.asarray(getattr(model, name), dtype=np.float64) for name in names}
    request |= {name: np.asarray(getattr(model, name), dtype=np.int32) for name in ("row_start", "index")}
    options = {
        "time_limit": float(min(limits.seconds, 1e9)),
        "random_seed": limits.seed % 2**31,
        "threads": limits.num_workers,
        "mip_rel_gap": 1e-9,
        "mip_abs_gap": 1e-9,
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
    }
    return request | {"is_whole": model.is_whole, "constant": model.constant, "options": options, "hint": hint}
