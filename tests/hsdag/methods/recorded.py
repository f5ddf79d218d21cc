"""What methods do on small problems, compared with what they did when ``recorded.json`` was written.

A search that ends by a count does the same on every machine: costs are whole numbers, randomness is NumPy's. So a
change of a sign, a limit or an order in a method shows, however good the answer still is. After a change that is
meant, write the file again, for all methods or some of them, and read its difference:

    python -m tests.hsdag.methods.recorded [METHOD ...]
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsdag.base.errors import OptionError
from hsdag.methods import method_modules, method_names
from hsdag.methods.exact import base, milp_split, stages
from hsdag.methods.exact.milp import LinearModel
from hsdag.methods.exact.solving import SolverAnswer
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.policy import Aim
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.repeated.chains import chain
from tests.hsdag.methods.searches import not_none

FILE = Path(__file__).with_name("recorded.json")
MOST = {"random": 30, "rules": 120, "auto": 500, "repeated": 2000, "sa": 20_000, "ea": 10_000}
"""Evaluations of a search, 2000 of others."""
NARROW = {"width": "16"}
CHANGES = {
    "sa": {"num_chains": "5", "first_round": "25", "patience_per_unit": "20"},
    "windows": {"smallest": "6", "size": "12", "proposals": "20"}, "auto": {"without": "cpsat,milp-split"},
    "doppler": NARROW, "gdp": NARROW, "hsdag": {"hidden": "16"}, "placeto": {}, "rnn": NARROW,
}  # fmt: skip
TRAINING = {"updates": "2", "plans_per_update": "3", "epochs": "1"}
MEASURED = {"sa", "ea", "auto"}
"""Methods of which a search that measures is recorded, too."""
TOLERANCE = 1e-3
"""Of what torch computes."""


def unlike(seed: int, num_ops: int, num_devices: int = 3, **others: Any) -> ScheduleProblem:
    """Unlike devices with little memory, of which some lack ops; results at two ports; two ops that lie together."""
    rng = np.random.default_rng(seed)
    edges = [(u, v) for v in range(num_ops) for u in range(max(v - 6, 0), v) if rng.random() < 0.3]
    times = rng.integers(1, 9, (num_ops, num_devices)) * np.array([4.0, 6.0, 7.0, 8.0])[:num_devices]
    times[rng.random(times.shape) < 0.1] = np.nan
    times[np.isnan(times).all(axis=1), 0] = 4.0
    weights = 4.0 * rng.integers(0, 9, num_ops)
    return ScheduleProblem.from_arrays(
        times,
        edges,
        output_bytes=2.0 * rng.integers(1, 9, num_ops),
        edge_port=rng.integers(0, 2, len(edges)),
        weight_bytes=weights,
        memory_bytes=np.array([0.8, 0.6, 0.7, 0.5])[:num_devices] * weights.sum(),
        link_latency_s=rng.integers(1, 5, (num_devices, num_devices)),
        link_bandwidth_bytes_per_s=2.0 ** rng.integers(-1, 3, (num_devices, num_devices)),
        launch_s=rng.integers(0, 3, num_devices),
        op_overhead_s=1.0,
        labels=OpLabels(
            ("Op",) * num_ops,
            tuple("a" if v in (3, 5) else "" for v in range(num_ops)),
            tuple(f"m{v // 3}" if v // 3 != 1 else "" for v in range(num_ops)),
            tuple(rng.choice(["shard", "reduce"], num_ops).tolist()),
            ("",) * num_ops,
        ),
        **others,
    )


@cache
def problems() -> dict[str, Problem]:
    """By name."""
    alike, slow = chain([1.0] * 5, 3, loads=1), chain([1.0] * 6)
    return {
        "unlike": problem_of(unlike(3, 14)),
        "channel": problem_of(unlike(5, 18), semantics=Semantics(links=LinkSharing.CHANNEL)),
        "sequential": problem_of(unlike(7, 16, transfer_overhead_s=1.0), semantics=Semantics(Execution.SEQUENTIAL)),
        "steady": problem_of(unlike(3, 14), THROUGHPUT),
        "blocks": problem_of(replace(alike, time_s=10 * alike.time_s)),
        "kinds": problem_of(chain([1.0, 1.0, 1.0, 2.0] * 2)),
        "slow": problem_of(replace(slow, time_s=slow.time_s * [10.0, 15.0])),
    }


def search(problem: Problem, method: str, *, measured: bool = False) -> list[object]:
    """How a search ended, and a checksum of all it had evaluated."""
    inner = ScheduleEvaluator.of(problem)
    object.__setattr__(inner, "is_cheap", not measured)
    recorder = RecordingEvaluator(inner, Budget(evaluations=100 if measured else MOST.get(method, 2000)))
    placer = make_placer(method, changes=CHANGES.get(method), is_cheap=not measured)
    try:
        result = placer.search(problem, recorder, Limits(num_workers=1))
    except OptionError as error:
        return [str(error)]
    bound = result.lower_bound and f"{result.lower_bound.value:.6g}"
    found = recorder.num_evaluations, f"{result.score:.6g}", bound, result.note or result.status.value
    return [*found, _checksum(recorder)]


def _checksum(recorder: RecordingEvaluator) -> str:
    plans = [
        (plan.placement.tolist(), None if plan.priority is None else plan.priority.tolist(), f"{score.value:.6g}")
        for plan, score in ((event.plan, event.score) for event in recorder.events)
    ]
    return f"{len(plans)} plans {zlib.crc32(repr(plans).encode()):08x}"


def programs(problem: Problem, method: str) -> list[object]:
    """The same of a method whose programs nobody solves, with a checksum of these."""
    checksums: list[int] = []

    def of_cpsat(model: Any, *_: object) -> SolverAnswer[Any]:
        checksums.append(zlib.crc32(str(model.model.proto).encode()))
        return SolverAnswer(len(checksums))

    def of_scip(model: LinearModel, *_: object) -> SolverAnswer[Any]:
        checksums.append(zlib.crc32(repr([[f"{v:.6g}" for v in each] for each in vars(model).values()]).encode()))
        return SolverAnswer(len(checksums))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "HEURISTICS", ("heft", "greedy"))
        patch.setattr(base, "solve_model", of_cpsat)
        patch.setattr(milp_split, "solve_model", of_cpsat)
        patch.setattr(LinearModel, "solved", of_scip)
        return [*search(problem, method), f"{len(checksums)} programs {zlib.crc32(repr(checksums).encode()):08x}"]


def training(problem: Problem, method: str, preset: str) -> list[object]:
    """What two updates of a policy drew, and the loss and its slope of the last plan then."""
    recorder = RecordingEvaluator(ScheduleEvaluator.of(problem))
    placer = make_placer(method, preset, {**CHANGES[method], **TRAINING}, is_cheap=True)
    assert isinstance(placer, LearnedPlacer)
    placer.search(problem, recorder)
    trainer = not_none(placer.trainer)
    replayed = trainer.policy.replay([recorder.events[-1].plan], torch.Generator())
    trainer.policy.network.zero_grad()
    loss = trainer.policy.loss(replayed, None, Aim(None, 0.0, 1.0))
    loss.backward()  # type: ignore[no-untyped-call]
    slopes = [float(each.grad.norm()) for each in trainer.policy.network.parameters() if each.grad is not None]
    drawn = sum(event.score.value for event in recorder.events if event.score.failure is None)
    values = drawn, loss.item(), float(np.linalg.norm(slopes))
    return [len(recorder.events), *(float(f"{value:.5g}") for value in values)]


def names(folder: str) -> list[str]:
    """What is recorded of the methods of a folder: methods, problems, and how they are searched."""
    methods = [method for method in method_names() if method_modules()[method].split(".")[2] == folder]
    if folder == "learned":
        found = [*product(methods, ("unlike", "sequential"), ("default", "paper"))]
    else:
        found = [
            *product(methods, problems(), ["simulated"]),
            *product(MEASURED & {*methods}, problems(), ["measured"]),
        ]
    return sorted(map(" ".join, found))


def outcome(name: str) -> list[object]:
    """What is to be recorded under a name."""
    method, of, how = name.split()
    if how in ("default", "paper"):
        return training(problems()[of], method, how)
    if ".exact." in method_modules()[method]:
        return programs(problems()[of], method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "MOST_CHOICES", 0)  # CP-SAT would search small ones
        return search(problems()[of], method, measured=how == "measured")


def check(folder: str) -> None:
    """Fail where the methods of a folder do not do what is recorded."""
    recorded, found = json.loads(FILE.read_text()), {name: outcome(name) for name in names(folder)}
    for name, values in recorded.items():
        recorded[name] = [pytest.approx(v, rel=TOLERANCE) if isinstance(v, float) else v for v in values]
    changed = {name: now for name, now in found.items() if now != recorded.get(name)}
    assert not changed, "what methods do has changed; where that is meant, write tests/hsdag/methods/recorded.json anew"


def record(methods: Sequence[str]) -> None:
    """Write down what methods do, all where none is named."""
    recorded = json.loads(FILE.read_text()) if methods else {}
    folders = sorted({module.split(".")[2] for module in method_modules().values()})
    found = [name for folder in folders for name in names(folder)]
    recorded |= {name: outcome(name) for name in found if not methods or name.split()[0] in methods}
    lines = [f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in found]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record(sys.argv[1:])
