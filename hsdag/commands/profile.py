"""Profiling a model from end to end: ops, links, and cuts of it. Legend: U placement units, B placements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.ir.coarsen import CoarseGraph, placement_units
from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.placement import ModelRecord
from hsdag.ir.processes import CandidateFailed
from hsdag.ir.scenario import Scenario
from hsdag.ir.sizing import read_sized
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.messages import CompiledPart
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import WAYS
from hsdag.runtime.platforms import Platform
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.devices import DeviceSet
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.session import Session

PARTS_LIMIT_S = 60.0
"""Once cuts have been compiled part by part for so long, no other one is."""

_PARTS = "part by part"


@dataclass(frozen=True, eq=False)
class ProfileResult:
    """A profile, and its costs as calibrated on placements that took ``measured_s`` [B] under HETERO."""

    graph: ComputationGraph
    problem: Problem
    profile: ModelProfile
    costs: HeteroCosts
    measured_s: FloatArray
    schedule: ScheduleProblem
    parts: tuple[tuple[int, CompiledPart], ...] = ()  # the cut, and a part of it

    def document(self) -> dict[str, Any]:
        """The JSON answer of ``hsdag profile``."""
        costs, devices = self.costs.costs, []
        shown = {spec.openvino_name: spec.name for spec in self.profile.devices}
        for spec, times, launch_s in zip(self.profile.devices, self.profile.times, costs.launch_s, strict=True):
            device = {
                "name": spec.name,
                "latency_s": times.latency_s,
                "spread": times.spread,
                "runs": times.runs,
                "compile_s": times.compile_s,
                "first_s": times.first_s,
                "resident_bytes": times.resident_bytes,
                "device_bytes": times.device_bytes,
                "memory_bytes": times.memory_bytes,
                "launch_s": float(launch_s),
                "unsupported_ops": int(np.isnan(times.time_s).sum()),
            }
            devices.append(device)
        bandwidth, contention = costs.link_bandwidth_bytes_per_s.tolist(), self.profile.contention
        slowdown = {}
        if contention is not None:
            slowdown = {kind: _numbers_or_null(table) for kind, table in contention.factor.items()}
        return {
            "source": costs.source.value,
            "devices": devices,
            "links": {"latency_s": costs.link_latency_s.tolist(), "bandwidth_bytes_per_s": bandwidth},
            "hand_over": {way: _handed(getattr(self.profile.links, way)) for way in WAYS},
            "slowdown": slowdown,
            "ops": self.graph.num_ops,
            "units": self.problem.num_units,
            "cuts_measured": int(np.isfinite(self.measured_s).sum()),
            "submodels": [{"cut": cut, **asdict(part), "device": shown[part.device]} for cut, part in self.parts],
        }


def _handed(table: FloatArray | None) -> dict[str, list[list[float | None]]] | None:
    """What one tensor costs, launch of the reader included, and bytes; null for pairs without a GPU."""
    if table is None or np.isnan(table).all():
        return None
    launch_s, latency_s, s_per_byte = table
    bandwidth = 1.0 / np.maximum(s_per_byte, 1e-12)
    tables = {"latency_s": launch_s + latency_s, "bandwidth_bytes_per_s": bandwidth}
    return {name: _numbers_or_null(each) for name, each in tables.items()}


def _numbers_or_null(table: FloatArray) -> list[list[float | None]]:
    return [[None if np.isnan(x) else x for x in row] for row in table.tolist()]


def run_profile(
    source: Any,
    devices: DeviceSet,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Path | None = None,
    scenarios: Sequence[Scenario] = (),
    seed: int = 0,
    cuts: int = 6,
    cache: ProfileCache | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> ProfileResult:
    """Profile a model, and calibrate links and launches on ``cuts`` random placements of it. Raises DeviceError."""
    with Session(source, devices, shapes=shapes, inputs=inputs, scenarios=scenarios, seed=seed) as session:
        profile = session.profile(cache, on_step=on_step, side_by_side=True)
        problem = session.problem(profile=profile)
        costs = HeteroCosts.of(session.graph, profile.costs())
        num = cuts if len(devices.placed) > 1 else 0
        placements = random_placements(problem, num, np.random.default_rng(seed))
        measured_s = np.zeros(0)
        if num:
            on_step(f"measuring {num} cuts of the model")
            evaluator = MeasuredEvaluator(problem, devices.placed, session.runner)
            measured_s = np.full(num, np.nan)
            for b, placement in enumerate(placements):
                (score,) = evaluator.evaluate([Plan(placement)])
                measured_s[b] = np.nan if score.failure is not None else score.value
                on_step(f"measured cut {b + 1} of {num}")
            costs = costs.calibrated(problem.expand(placements), measured_s)
        parts = _compiled_parts(session, problem, placements, on_step)
        names, own = problem.devices, {record.name: record for record in session.device_records}
        by_op = ScheduleProblem.from_graph(session.graph, costs.costs, names, profile.memory_bytes)
        records = tuple(own[name] for name in names)
        schedule = replace(tied(by_op, problem.units), model=session.model_record, devices=records)
        return ProfileResult(session.graph, problem, profile, costs, measured_s, schedule, parts)


def _compiled_parts(
    session: Session, problem: Problem, placements: IntArray, on_step: Callable[[str], None]
) -> tuple[tuple[int, CompiledPart], ...]:
    """Parts of placements [B, U], from 1 on, with what compiling each took; those that fail have none.

    The work-conserving executor's, for HETERO compiles all of its submodels in one. Placements of fewest changes of
    device come first, and none is begun after PARTS_LIMIT_S.
    """
    crossing = [int((np.diff(problem.expand(placement)) != 0).sum()) for placement in placements]
    found: list[tuple[int, CompiledPart]] = []
    begin_s = time.monotonic()
    for number, b in enumerate(np.argsort(crossing, kind="stable").tolist()):
        if time.monotonic() - begin_s > PARTS_LIMIT_S:
            on_step(f"{len(placements) - number} cuts were not compiled part by part: {PARTS_LIMIT_S:.0f} s are over")
            break
        candidate = session.placed(problem, Plan(placements[b]), "work-conserving")
        with suppress(CandidateFailed):
            found += [(b + 1, part) for part in session.runner.open(_PARTS, candidate).parts]
            session.runner.close(_PARTS)
    return tuple(sorted(found, key=lambda each: -each[1].compile_s))


def random_placements(problem: Problem, count: int, rng: np.random.Generator) -> IntArray:
    """[B, U] legal placements, in turn contiguous and not, from few cuts to many.

    Contiguous ones change device at random places of the topological order, their number drawn log-uniformly; the
    others follow a random input's device and leave it with a probability drawn afresh for each placement.
    """
    placements = np.empty((count, problem.num_units), dtype=np.int64)
    for b in range(count):
        drawn = _contiguous(problem, rng) if b % 2 == 0 else _scattered(problem, rng)
        legal = problem.supported[np.arange(problem.num_units), drawn]
        placements[b] = np.where(legal, drawn, problem.supported.argmax(axis=1))
    return placements


def _contiguous(problem: Problem, rng: np.random.Generator) -> IntArray:
    num, d = problem.num_units, problem.num_devices
    most = max(num // 2, 2)
    cuts = np.sort(rng.choice(np.arange(1, max(num, 2)), size=int(np.exp(rng.uniform(0, np.log(most)))), replace=False))
    part = np.searchsorted(cuts, np.arange(num), side="right")
    steps = rng.integers(1, max(d, 2), size=len(cuts) + 1)
    return np.asarray((rng.integers(d) + np.cumsum(steps)[part]) % d, dtype=np.int64)


def _scattered(problem: Problem, rng: np.random.Generator) -> IntArray:
    graph, d = problem.units.graph, problem.num_devices
    leave = float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
    device = np.zeros(problem.num_units, dtype=np.int64)
    for v in graph.topological_order.tolist():
        inputs = graph.predecessors.of(v)
        near = int(device[rng.choice(inputs)]) if len(inputs) else int(rng.integers(d))
        device[v] = (near + int(rng.integers(1, d))) % d if d > 1 and rng.random() < leave else near
    return device


def assumed_costs(
    source: Any,
    platform: Platform,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    name: str | None = None,
    units_of: Callable[[ComputationGraph], CoarseGraph] = placement_units,
    *,
    scenarios: Sequence[Scenario] = (),
) -> ScheduleProblem:
    """A model's costs on a platform that is not here, by its figures; ``name`` is that of a model without a file.

    Raises ModelError as reading does.
    """
    graph = read_sized(source, shapes, scenarios)
    units = units_of(graph)
    problem = ScheduleProblem.from_graph(
        graph, analytic_costs(graph, platform), platform.device_names, platform.memory_bytes
    )
    return replace(tied(problem, units), model=ModelRecord.of(graph, name or Path(source).stem))


def tied(problem: ScheduleProblem, units: CoarseGraph) -> ScheduleProblem:
    """Every op of a problem tied to its unit, so that answers fit the model's own ops."""
    names = tuple(units.graph.op_names[u] for u in units.partition.labels.tolist())
    return replace(problem, labels=replace(problem.labels, colocate=names))
