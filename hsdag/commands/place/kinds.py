"""Trial of each kind of answer: compiles and times the best split, shards and copies once before the search.

So no kind is ruled out by a prediction alone. The candidates come from a rough profile: the latency of each device,
divided among ops by what they compute and move, without slow-downs of devices by each other.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hsdag.base.errors import DeviceError
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.copies import proposed_copies
from hsdag.commands.place.limits import too_large
from hsdag.commands.place.pace import Deadline, Pace
from hsdag.commands.place.session import Session
from hsdag.commands.place.shards import NEAR, ShardProposals, sharded_candidate
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray, inverse_of
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions

SHARE = 0.2
"""Share of the budget after which no further kind is compiled; it is then timed after the profile, if time allows."""

TURNS = 2
"""Number of turns of a kind and the fastest device."""

RUNS = 2
"""Inferences in each turn; the fastest of all turns counts."""

FLOPS_PER_BYTE = 10.0
"""FLOPs that a CPU core computes while it moves a byte, roughly."""

LAUNCH_S = 5e-5
"""Seconds to start a submodel on a CPU, roughly."""

LINK_S = 1e-5
"""Seconds of latency between submodels on a CPU, roughly."""

LINK_BYTES_PER_S = 5e9
"""Bytes per second between submodels on a CPU, roughly."""

FOR_SURE = 2.0
"""Ratio to the fastest device's seconds above which a kind has lost, even if another program took a core meanwhile."""

SPLIT, SHARDS, COPIES = "split", "shards", "copies"
"""Names of the kinds that use several devices."""

_KEY = "kind: "


@dataclass(frozen=True, eq=False)
class Kinds:
    """Result of timing the best candidate of each kind once.

    Attributes:
        times: Ratio of each candidate's seconds to those of the fastest device, or of the fastest candidate if no
            device runs the model.
        split: Device of each op in the split that was timed [N]; None if none was.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    sharding: Sharding | None = None
    split: IntArray | None = None

    def is_near(self, kind: str) -> bool:
        """Return whether a kind was timed and took less than NEAR times as long as the fastest device."""
        return self.times.get(kind, np.inf) < NEAR

    def has_lost(self, kind: str) -> bool:
        """Return whether a kind took more than FOR_SURE times as long as the fastest device."""
        return self.times.get(kind, 0.0) > FOR_SURE

    def believed(self, measured: list[Sharding]) -> list[Sharding]:
        """Return the measured shardings or, if all have lost, the one that did well when timed before the search.

        The machine may have been slower while they were measured, so the comparison has to decide.
        """
        early = self.sharding
        return [early] if early is not None and not measured and self.is_near(SHARDS) else measured


def rough_profile(session: Session, whole_s: Mapping[str, float]) -> ModelProfile:
    """Return a profile that divides each device's latency among ops by what they compute and move.

    Args:
        whole_s: Measured seconds of the whole model, by device; others get the mean.
    """
    devices = session.devices.placed
    mean_s = np.mean([*whole_s.values()] or [1.0])
    total_s = np.array([whole_s.get(spec.name, mean_s) for spec in devices])
    work = work_of(session.graph)
    profiles = []
    for spec, each_s in zip(devices, total_s.tolist(), strict=True):
        time_s = each_s * work / max(work.sum(), 1.0)
        refused = session.unsupported_ops(spec)
        time_s[refused] = np.nan
        alone_s = None if len(refused) else each_s
        profiles.append(DeviceProfile(time_s, (), alone_s, 0.0, 1, 0, None, device=spec))
    num = len(devices)
    table = np.full((num, num), LINK_S), np.full((num, num), LINK_BYTES_PER_S)
    return ModelProfile(devices=tuple(profiles), links=LinkProfile(np.full(num, LAUNCH_S), *table))


def work_of(graph: ComputationGraph) -> FloatArray:
    """Return the work of each op in FLOPs [N]; moving weights and tensors counts FLOPS_PER_BYTE where that is more."""
    read = np.bincount(graph.edge_dst, graph.edge_bytes, minlength=graph.num_ops)
    moved = graph.weight_bytes + graph.output_bytes + read
    work: FloatArray = np.where(floating_ops(graph), 0.0, np.maximum(graph.flops, FLOPS_PER_BYTE * moved))
    return work


def contiguous(problem: Problem) -> list[Plan]:
    """Return plans in two pieces: the first tenth, two tenths, ... of the units on one device, the rest on another.

    Units that pins or devices do not allow there go elsewhere.
    """
    position = inverse_of(problem.units.graph.topological_order)
    pairs = itertools.permutations(range(problem.num_devices), 2)
    shares = [position < tenths * problem.num_units // 10 for tenths in range(1, 10)]
    return [problem.nearest(np.where(early, first, then)) for first, then in pairs for early in shares]


def best_split(problem: Problem, *, is_steady: bool) -> Plan | None:
    """Return the fastest split in two pieces by the costs of units and links; None if there is none.

    Its time is the sum over devices, or with several inferences in flight (``is_steady``) that of the busiest device.
    """
    costs = problem.known_costs
    best: tuple[float, Plan] | None = None
    units = np.arange(problem.num_units)
    for plan in contiguous(problem):
        if not plan.is_split:
            continue
        each_s = np.bincount(plan.placement, np.nan_to_num(costs.time_s)[units, plan.placement])
        crossing = plan.placement[costs.edge_src] != plan.placement[costs.edge_dst]
        sent_s = float(np.sum(LINK_S + costs.edge_bytes[crossing] / LINK_BYTES_PER_S))
        takes_s = float(each_s.max() if is_steady else each_s.sum()) + sent_s
        if best is None or takes_s < best[0]:
            best = takes_s, plan
    return None if best is None else best[1]


def timed_kinds(session: Session, options: PlaceOptions, watcher: Watcher, begin_s: float) -> Kinds:
    """Compile and time the best candidate of each kind, within SHARE of the budget, which runs from ``begin_s``."""
    is_timed = options.objective is LATENCY or options.objective.is_steady
    if session.is_on_torch or len(session.devices.placed) < 2 or not is_timed:
        return Kinds()
    watcher.on_phase("timing each kind of answer once")
    return _KindTrial(session, options, watcher, begin_s).run()


class _KindTrial:
    """Trial of candidates in the session's worker, of which at most two are open at a time."""

    def __init__(self, session: Session, options: PlaceOptions, watcher: Watcher, begin_s: float) -> None:
        self._session, self._options, self._watcher = session, options, watcher
        objective = THROUGHPUT if options.objective.is_steady else LATENCY
        self._runner = CandidateRunner(session.client, objective, session.runner.limits, session.scenarios)
        self._deadline = Deadline(begin_s + SHARE * options.budget_s, watcher.should_stop)
        self._taken_s = dict[str, float]()
        self._fastest: str | None = None
        self._compile_s = self._run_s = 0.0

    def run(self) -> Kinds:
        """Time the first of each group of equal devices, then kinds that use several, then the remaining devices."""
        session = self._session
        ruled_out = too_large(session, None)
        able = [spec for spec in session.devices.placed if spec.name not in ruled_out]
        others = [spec for spec in session.devices.rivals if spec.name not in {*ruled_out, *session.devices.defaults}]
        alike: dict[str, list[DeviceSpec]] = {}
        for spec in able:
            alike.setdefault(str((spec.plugin, sorted(spec.properties.items()))), []).append(spec)
        alone_s = dict[str, float]()
        for spec, *more in alike.values():
            if self._time(spec.name, Candidate(spec.openvino_name)):
                alone_s |= dict.fromkeys([each.name for each in (spec, *more)], self._taken_s[spec.name])
        sharding, split = self._of_several(alone_s)
        for spec in [*(each for _, *more in alike.values() for each in more), *others]:
            self._time(spec.name, Candidate(spec.openvino_name))
        for key in list(self._runner.candidates):
            self._runner.close(key)
        session.runner.taken.part_s = self._runner.taken.part_s
        least_s = self._taken_s[self._fastest] if self._fastest else min(self._taken_s.values(), default=1.0)
        times = {name: each_s / least_s for name, each_s in self._taken_s.items()}
        return Kinds(times, sharding, split)

    def _of_several(self, alone_s: Mapping[str, float]) -> tuple[Sharding | None, IntArray | None]:
        """Time a sharding, copies and a split by what devices take alone; return the sharding and the split's plan."""
        session, options = self._session, self._options
        if self._deadline.is_over(2 * self._compile_s):
            return None, None
        try:
            profile = rough_profile(session, alone_s)
            problem = session.problem(max_share=options.chosen_preset.max_share, profile=profile)
        except DeviceError:
            if not self._watcher.should_stop():
                raise
            return None, None  # what devices support was asked for too long after an interrupt
        sharding = ShardProposals(session, options, profile).first() if options.executor != "hetero" else None
        if sharding is not None:
            self._time(SHARDS, sharded_candidate(session, sharding))
        for copies in list(proposed_copies(session, options, profile, problem).values())[:1]:
            self._time(COPIES, copies.candidate(session, problem))
        plan = best_split(problem, is_steady=options.objective.is_steady)
        if plan is None or not self._time(SPLIT, session.placed(problem, plan, options.search_executor)):
            return sharding, None
        return sharding, problem.expand(plan.placement)

    def _time(self, name: str, candidate: Candidate) -> bool:
        """Time a candidate in turns with the fastest device, and return whether it ran.

        It is left out if it is predicted to end too late. The candidate is closed unless it is the fastest device.
        """
        key, is_device = _KEY + name, name not in (SPLIT, SHARDS, COPIES)
        opening_s = self._compile_s if is_device else Pace(self._compile_s).opening_s(candidate)
        if self._deadline.is_over(opening_s + 2 * (1 + TURNS * RUNS) * self._run_s):
            return False
        self._watcher.on_step(name)
        try:
            opened = self._runner.open(key, candidate)
            if is_device:
                self._compile_s = max(self._compile_s, opened.compile_s)
            begin_s = time.monotonic()
            taken_s = self._runner.run(key, 1)
            round_s = RUNS * (time.monotonic() - begin_s + self._run_s)
            for _ in range(TURNS):
                if self._deadline.is_over(round_s):
                    break
                taken_s += self._runner.run(key, RUNS)
                if self._fastest is not None:
                    again_s = self._runner.run(_KEY + self._fastest, RUNS)
                    self._taken_s[self._fastest] = min(self._taken_s[self._fastest], *again_s)
        except CandidateFailed:
            if key in self._runner.candidates:
                self._runner.close(key)
            return False
        self._taken_s[name] = min(taken_s)
        before = self._fastest
        if is_device and (before is None or self._taken_s[name] < self._taken_s[before]):
            self._fastest, key = name, "" if before is None else _KEY + before
            self._run_s = max(self._run_s, self._runner.taken.value_s)
        if key:
            self._runner.close(key)
        return True
