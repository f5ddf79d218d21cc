"""A report of a small made-up run, every name of which is markup that a page must not take for its own."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import graph_from_edges
from hsdag.reports.content import Advice, Compared, PlacedGraph, ReportContent, Trial, Turn
from hsdag.runtime.timeline.timeline import OpIntervals, Timeline, TransferIntervals

EVIL = "<img src=x onerror=alert(1)></script><b>"
FAST, SLOW = f"FAST{EVIL}", f"SLOW{EVIL}"
NAMES = tuple(f"{name} {EVIL}" for name in ("input", "stem", "left", "right", "join"))
TYPES = ("Parameter", "Convolution", "MatMul", f"Relu{EVIL}", "Concat")
GRAPH = graph_from_edges(TYPES, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)], name=EVIL, op_names=NAMES)
DEVICE = np.array([0, 0, 0, 1, 0])
TIME_S = np.array([[0.0, 0.0], [0.004, 0.008], [0.002, 0.005], [0.003, 0.001], [0.001, np.nan]])


def timeline(*, simulated: bool) -> Timeline:
    start_s = np.array([0.0, 0.004, 0.0045, 0.0065])
    ops = OpIntervals(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 0]), start_s, np.array([0.004, 0.006, 0.0055, 0.0075]))
    there, back = np.array([1, 3]), np.array([0, 1])
    sent = TransferIntervals(there, back, 1 - back, np.array([0.004, 0.0055]), np.array([0.0045, 0.006]), np.ones(2))
    return Timeline(EVIL, NAMES, TYPES, (FAST, SLOW), ops, sent, np.zeros((0, 2), dtype=np.int64), simulated)


def compared(name: str, median: float, *, is_answer: bool = False, known: bool = True) -> Compared:
    ratio = 10.0 / median
    low, high = (ratio - 0.05, ratio + 0.05) if known else (None, None)
    return Compared(name, median, 1.1 * median, 40, ratio, low, high, 2, {FAST: 4, SLOW: 1}, is_answer)


CONTENT = ReportContent(
    name=EVIL,
    sentence=f"The placement is 33.3% faster than {FAST}.",
    subtitle=f"latency · {FAST}",
    advice=(Advice(f"Deploy it on {FAST}.", f"hsdag bench {EVIL}"),),
    placed=PlacedGraph(GRAPH, (FAST, SLOW), DEVICE, np.array([0, 0, 1, 2, 3]), f"part{EVIL}", TIME_S),
    compared=(
        compared(f"placement {EVIL}", 7.5, is_answer=True),
        compared(FAST, 10.0, known=False),
        compared(SLOW, 15.0),
    ),
    versus=FAST,
    left_out={f"CPU{EVIL}": f"it failed: {EVIL}"},
    trials=(
        Trial(1.0, 10.0),
        Trial(2.0, None, f"crashed {EVIL}"),
        Trial(3.0, 7.5),
    ),
    turns=(Turn(f"heft{EVIL}", 0.5, 1.0, None, 9.0), Turn(f"sa{EVIL}", 1.0, 3.0, 9.0, 9.0, EVIL)),
    num_simulated=1234,
    turned_down={f"placement 2{EVIL}": f"its outputs differ {EVIL}"},
    why=f"It won over {FAST}.",
    timelines=(timeline(simulated=True), timeline(simulated=False)),
    environment={f"device {FAST}": EVIL},
)
