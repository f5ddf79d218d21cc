"""A small made-up run, every name of which is markup that a page must not take for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hsdag.commands.place.records import Row, Tally, Verdict
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder, RunRecord
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.placement import ModelRecord, Placement, SpeedupRecord
from hsdag.runtime.measuring.profile import DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals
from hsdag.search.driver import Member
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event

EVIL = "<img src=x onerror=alert(1)></script><b>"
FAST, SLOW = f"FAST{EVIL}", f"SLOW{EVIL}"
NAMES = tuple(f"{name} {EVIL}" for name in ("input", "stem", "left", "right", "join"))
TYPES = ("Parameter", "Convolution", "MatMul", f"Relu{EVIL}", "Concat")
GRAPH = graph_from_edges(TYPES, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)], name=EVIL, op_names=NAMES)
DEVICE = np.array([0, 0, 0, 1, 0])
TIME_S = np.array([[0.0, 0.0], [0.004, 0.008], [0.002, 0.005], [0.003, 0.001], [0.001, np.nan]])
DEVICES = tuple(DeviceSpec(name, "CPU") for name in (FAST, SLOW))


def measured_timeline() -> Timeline:
    start_s = np.array([0.0, 0.004, 0.0045, 0.0065])
    ops = OpIntervals(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 0]), start_s, np.array([0.004, 0.006, 0.0055, 0.0075]))
    there, back = np.array([1, 3]), np.array([0, 1])
    sent = TransferIntervals(there, back, 1 - back, np.array([0.004, 0.0055]), np.array([0.0045, 0.006]), np.ones(2))
    return Timeline(EVIL, NAMES, TYPES, (FAST, SLOW), ops, sent, np.zeros((0, 2), dtype=np.int64), simulated=False)


def row(name: str, median: float, *, is_answer: bool = False) -> Row:
    ratio, ops = 0.01 / median, {FAST: 4, SLOW: 1}
    more: dict[str, Any] = {"runs": 40, "rounds": 20, "submodels": 2, "ops": ops, "is_answer": is_answer}
    ends = (ratio - 0.05, ratio + 0.05)
    return Row(name=name, median=median, p95=1.1 * median, ratio=ratio, ci95=ends, **more)


def turn(method: str, began_s: float, ended_s: float, before: float | None, failure: str | None = None) -> Member:
    more: dict[str, Any] = {"bound": None, "status": None, "failure": failure}
    return Member(method=method, began_s=began_s, ended_s=ended_s, before=before, after=0.009, **more)


def event(elapsed_s: float, score: Score) -> Event:
    return Event(Plan(DEVICE[1:]), score, elapsed_s)


PLACEMENT = Placement(
    model=ModelRecord.of(GRAPH),
    devices=list(DEVICES),
    affinity={GRAPH.canonical_names[v]: (FAST, SLOW)[d] for v, d in enumerate(DEVICE.tolist())},
    method="auto",
    seed=0,
    objective="latency",
    executor="hetero",
    speedup=SpeedupRecord(versus=FAST, ratio=4 / 3, ci95=(1.2, 1.4)),
)
RESULT = PlaceResult.model_construct(
    sentence=f"The placement is 33.3% faster than {FAST}.",
    objective="latency",
    unit="s",
    placement=PLACEMENT,
    rows=(row(f"placement {EVIL}", 0.0075, is_answer=True), row(FAST, 0.010), row(SLOW, 0.015)),
    failures={f"CPU{EVIL}": f"it failed: {EVIL}"},
    members=(turn(f"heft{EVIL}", 0.5, 1.0, None), turn(f"sa{EVIL}", 1.0, 3.0, 0.009, EVIL)),
    tally=Tally(simulated=1234),
    verdict=Verdict("cpu", 0.1),
    turned_down={f"placement 2{EVIL}": f"its outputs differ {EVIL}"},
    budget_s=5.0,
    finished="2026-01-01T00:00:00Z",
    environment={f"device {FAST}": EVIL},
    timeline=measured_timeline(),
)
PROFILE = ModelProfile(
    devices=tuple(
        DeviceProfile(time_s, (), None, 0.0, 20, 0, None, device=spec)
        for spec, time_s in zip(DEVICES, TIME_S.T, strict=True)
    ),
    links=LinkProfile(np.full(2, 1e-4), np.full((2, 2), 1e-5), np.full((2, 2), 1e9)),
)
RECORD = RunRecord(
    model=ModelRecord.of(GRAPH),
    devices=list(DEVICES),
    placed=[FAST, SLOW],
    num_units=4,
    model_path=f"{EVIL}.xml",
    arguments=("--devices", FAST),
    method="auto",
)


class Example(RunFolder):
    """A run of which nothing is on disk."""

    def __init__(
        self, events: list[Event], profile: ModelProfile | None, result: PlaceResult | None, executor: str = "hetero"
    ) -> None:
        super().__init__(Path(f"{EVIL}.run"), RECORD.model_copy(update={"executor": executor}))
        if result is not None:
            result = result.model_copy(update={"placement": result.placement.model_copy(update={"executor": executor})})
        vars(self).update(graph=GRAPH, profile=profile, result=result)
        self._events = events

    @property
    def events(self) -> list[Event]:
        return self._events


EVENTS = [event(1.0, Score(0.010)), event(2.0, Score(failure=f"crashed {EVIL}")), event(3.0, Score(0.0075))]
RUN, BEGUN = Example(EVENTS, PROFILE, RESULT), Example([], None, None)
"""A run, and the same before anything has been measured."""
