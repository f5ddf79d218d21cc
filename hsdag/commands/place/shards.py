"""Shards in a search: proposals of ways to divide a session's model, simulated, measured, and as candidates."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hsdag.base.errors import PlacementError, option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.pace import Deadline
from hsdag.commands.place.session import Session
from hsdag.ir.graph.colocation import resident_weight_bytes
from hsdag.ir.graph.sizing import sized
from hsdag.ir.graph.state import variable_of
from hsdag.ir.shards.regions import OpShapes
from hsdag.ir.shards.rewrite import ShardedGraph, shard
from hsdag.methods.shards.choice import ShardChooser, Sharding
from hsdag.methods.shards.division import ShardCosts
from hsdag.methods.shards.proposals import MOST_TRIALS, NEAR_PRICES, PRICES, propose
from hsdag.runtime.costs.shard_costs import ShardFactors, fitted_factors, sharded_costs, simulated_s
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.pins import NOT_PINNED
from hsdag.search.options import PlaceOptions

MEASURED_SHARE = 0.2
"""Largest share of the budget for measuring proposals before the search."""

MEASURED_RUNS = 2
"""Inferences of each proposal in a round."""

MEASURED_ROUNDS = 3
"""Rounds in which proposals and the fastest device take turns."""

MOST_OVER = 1.5
"""Ratio to the time limit by which the first proposal must be compiled, by estimate."""

NEAR = 1.1
"""Ratio to the fastest device's seconds above which a measured proposal is dropped."""

PROPOSED_SHARE = 0.05
"""Share of the budget after which no further proposals are simulated."""


class ShardProposals:
    """Proposer of ways to divide a session's model, by simulation with its profile, and better ones after measuring.

    Only for latency; for throughput it proposes shards ``beside`` copies. Pinned ops stay whole, and memory limits are
    kept.
    """

    def __init__(self, session: Session, options: PlaceOptions, profile: ModelProfile) -> None:
        self.session = session
        self.is_possible = options.objective is LATENCY and not session.is_on_torch
        self.is_steady = options.objective.is_steady
        self.costs = WorkConservingCosts.of(session.graph, profile.costs(session.graph), profile.links.syncs)
        self._deadline = Deadline()  # for simulating proposals
        self.best_times: float | None = None  # ratio of the best measured proposal to the fastest device
        self.limits = session.memory_limits(profile)
        self.factors = ShardFactors()
        pinned = session.model.pinned
        self.pins = {} if pinned is None else {v: int(d) for v, d in enumerate(pinned) if d != NOT_PINNED}
        self.whole_s = float(np.nan_to_num(self.costs.cut_costs.op_s, nan=np.inf).sum(axis=0).min())
        self._made: list[tuple[Sharding, ShardedGraph]] = []

    @property
    def shapes(self) -> OpShapes:
        """Return the shapes of the model's ops, for the rules of division."""
        return self.session.loaded.op_shapes(self.session.graph)

    def proposed(
        self,
        prices: Sequence[float] = PRICES,
        trials: int = 0,
        least: int = 0,
        *,
        costs: ShardCosts | None = None,
        predict: Callable[[Sharding], float] | None = None,
    ) -> list[Sharding]:
        """Propose ways to divide the model, the fastest by simulation first; arguments as in ``propose``."""
        if not self.is_possible:
            return []
        costs, predict = costs or shard_costs(self.costs), predict or self._value_of
        is_over = self._deadline.is_over
        return propose(self.shapes, costs, self.pins, prices, predict, trials, is_over=is_over, least=least)

    def first(self) -> Sharding | None:
        """Return the way that is predicted to be fastest, without simulation, whether or not it gains anything."""
        self._deadline = Deadline(-math.inf)
        ways = self.proposed(PRICES[:1], least=1, predict=None if self.limits else lambda way: way.predicted_s)
        self._deadline = Deadline()
        return next(iter(ways), None)

    def to_measure(self, limit_s: float) -> list[Sharding]:
        """Return ways to measure, at least one if any exists, even if it is not predicted to gain anything.

        The best way without slow-downs of devices by each other is among them, as measured slow-downs may be wrong. No
        proposal is simulated after ``limit_s`` seconds.
        """
        self._deadline = Deadline(time.monotonic() + limit_s)
        ways = self.proposed(least=1)
        if self.costs.slowdown is not None and self.costs.slowdown.max() > 1.0:
            others = self.proposed(PRICES[:1], least=1, costs=self._undisturbed)
            ways += [way for way in others[:1] if way not in ways]
        self._deadline = Deadline()
        return ways

    @property
    def _undisturbed(self) -> ShardCosts:
        """Return the costs of shards if devices did not slow each other down."""
        return shard_costs(replace(self.costs, slowdown=None))

    def least_s(self) -> float:
        """Return the predicted seconds of the cheapest way to divide the model, with costs fitted to measurements.

        Infinite if nothing can be divided.
        """
        if not self.is_possible:
            return np.inf
        price = self.factors.boundary / self.factors.work
        best = self.choosers()[0].best(price)
        if best is None:
            return np.inf
        return self.factors.work * (best.bound_s + price * (best.predicted_s - best.bound_s))

    def beside(self, devices: Sequence[int]) -> tuple[Sharding, float] | None:
        """Return the fastest way to divide the model over these devices for throughput, and its seconds per inference.

        None for fewer than two devices, or if nothing can be divided.
        """
        if len(devices) < 2:
            return None
        costs = shard_costs(self.costs).of(devices)
        ways = propose(self.shapes, costs, predict=lambda way: self._value_of(way.over(devices)))
        return (ways[0].over(devices), ways[0].predicted_s) if ways else None

    def _value_of(self, sharding: Sharding) -> float:
        """Return the seconds of a sharding, simulated, or predicted if there is no time to simulate.

        Infinite if weights exceed a device's memory, or ops cannot be divided in this way.
        """
        try:
            weight_bytes = weights_by_device(self.session, self.sharded(sharding))
        except PlacementError:
            return np.inf
        if not all(weight_bytes[name] <= limit for name, limit in self.limits.items() if name in weight_bytes):
            return np.inf
        return sharding.predicted_s if self._deadline.is_over() else self.simulated_s(sharding)

    def choosers(self) -> tuple[ShardChooser, ShardChooser]:
        """Return a chooser for all devices, and one that ignores how much devices slow each other down."""
        costs = shard_costs(self.costs), self._undisturbed
        slowed, undisturbed = (ShardChooser(self.shapes, each, pins=self.pins) for each in costs)
        return slowed, undisturbed

    def measured(
        self,
        proposals: Sequence[Sharding],
        limit_s: float,
        should_stop: Callable[[], bool],
        opening_s: Callable[[Candidate], float] = lambda _: 0.0,
    ) -> list[Sharding]:
        """Measure proposals in turns with the fastest device, and return those that did not lose, the fastest first.

        The result includes new ways that are cheapest by the measurements, and leaves out all that take more than NEAR
        times as long as the device.

        Args:
            limit_s: Seconds for measuring; a proposal may overrun them up to MOST_OVER times.
            should_stop: Returns True to end early.
            opening_s: Estimates the seconds to compile a candidate.
        """
        runner = self.session.runner
        end_s = time.monotonic() + limit_s
        opened: dict[str, Sharding | None] = {}
        whole = self.session.devices.placed[int(np.nansum(self.costs.table.op_s, axis=0).argmin())]
        with contextlib.suppress(CandidateFailed):
            for number, way in enumerate([None, *proposals]):
                begin_s = time.monotonic()
                candidate = Candidate(whole.openvino_name) if way is None else sharded_candidate(self.session, way)
                if begin_s + opening_s(candidate) > end_s + (MOST_OVER - 1.0) * limit_s:
                    break
                runner.open(f"trial {number}", candidate)
                opened[f"trial {number}"] = way
                if should_stop() or (number and time.monotonic() + 2 * (time.monotonic() - begin_s) > end_s):
                    break
            taken_s = {key: list[float]() for key in opened}
            for number in range(MEASURED_ROUNDS if len(opened) > 1 else 0):
                if number and time.monotonic() > end_s:
                    break
                for key, times_s in taken_s.items():
                    times_s += runner.run(key, MEASURED_RUNS)
        for key in opened:
            runner.close(key)
        if len(opened) < 2 or not all(taken_s.values()):
            return list(proposals)
        scale = self.whole_s / min(taken_s["trial 0"])
        seen = {id(way): min(taken_s[key]) * scale for key, way in opened.items() if way is not None}
        self.best_times = min(seen.values()) / self.whole_s
        self.factors = fitted_factors(
            self.costs, [self.sharded(p) for p in proposals if id(p) in seen], [*seen.values()]
        )
        self._deadline = Deadline(end_s)
        prices = [self.factors.boundary / self.factors.work * near for near in NEAR_PRICES]
        better = [] if self._deadline.is_over() else self.proposed(prices, MOST_TRIALS)
        self._deadline = Deadline()
        ways = [replace(way, predicted_s=seen.get(id(way), self.simulated_s(way))) for way in proposals]
        ways += [way for way in better if way not in proposals]
        most_s = NEAR * self.whole_s
        return sorted((way for way in ways if way.predicted_s < most_s), key=lambda way: way.predicted_s)

    def sharded(self, sharding: Sharding) -> ShardedGraph:
        """Return the graph of the model divided in this way."""
        divided = next((made for way, made in self._made if way == sharding), None)
        if divided is None:
            how = sharding.regions, sharding.devices, self.session.devices.index.names
            made = shard(self.session.loaded.ov_model, self.session.graph, *how, fills=False, op_shapes=self.shapes)
            divided = made.outline
            if self.session.scenarios:
                divided = replace(divided, graph=sized(divided.graph, made.model, self.session.scenarios))
            self._made.append((sharding, divided))
        return divided

    def simulated_s(self, sharding: Sharding) -> float:
        """Simulate the seconds of an inference, or per inference for throughput, with costs fitted to measurements."""
        divided = self.sharded(sharding)
        costs = sharded_costs(self.costs, divided, self.factors)
        if self.is_steady:
            return float(costs.period_s(np.array([divided.devices]))[0])
        return simulated_s(costs, divided.devices)


def told_under_hetero(proposals: ShardProposals) -> str | None:
    """Return a note on what dividing the model, which HETERO cannot do, would gain; None if it gains nothing."""
    ways = proposals.proposed()
    if not ways:
        return None
    share = ways[0].predicted_s / proposals.whole_s
    return (
        f"hsdag's own executor can divide this model: simulated, it takes {share:.2f} of the time on one device; "
        f"measure it with {option('executor')} work-conserving"
    )


def told_undivided(proposals: ShardProposals) -> str | None:
    """Return a note on why a model with state is not divided; None for models without state."""
    if not proposals.is_possible or variable_of(proposals.session.graph) is None:
        return None
    costs = shard_costs(proposals.costs)
    on_cpu = all(spec.plugin == "CPU" for spec in proposals.session.devices.placed)
    sharing = ", which share the memory that weights are read from," if on_cpu else ""
    return (
        f"dividing this model is not predicted to gain anything: an inference takes {1e3 * proposals.whole_s:.3g} ms "
        f"and a sync {1e3 * costs.launch_s:.2g} ms at least, and devices{sharing} take "
        f"{costs.slowdown.max():.2f} times as long side by side"
    )


def named_ways(shardings: Sequence[Sharding]) -> dict[str, Sharding]:
    """Name ways to divide the model for the comparison, in their order."""
    return {f"shards {rank}": sharding for rank, sharding in enumerate(shardings, start=1)}


def shard_costs(costs: WorkConservingCosts) -> ShardCosts:
    """Return the costs of shards: times of whole ops, slow-downs, and seconds to start a part and to pass bytes."""
    of_cuts = costs.cut_costs
    per_byte = of_cuts.read_s_per_byte + of_cuts.write_s_per_byte
    slowdown = np.ones(costs.num_devices) if costs.slowdown is None else costs.slowdown.max(axis=1)
    return ShardCosts(of_cuts.op_s, slowdown, float(of_cuts.launch_s.max()), float(per_byte.max()))


def sharded_candidate(session: Session, sharding: Sharding) -> Candidate:
    """Return a way to divide the model as a candidate."""
    return Candidate.sharded(sharding.regions, sharding.devices, session.devices.index.openvino_names)


def ops_by_device(session: Session, sharding: Sharding) -> dict[str, int]:
    """Return the number of ops that each device computes as a whole or in part, by name."""
    divided = {v: list(region.shares) for region in sharding.regions for v in region.ops}
    counts = Counter(d for v, device in enumerate(sharding.devices) for d in divided.get(v, [device]))
    return {spec.name: counts[d] for d, spec in enumerate(session.devices.placed)}


def weights_by_device(session: Session, divided: ShardedGraph) -> dict[str, float]:
    """Return the bytes of weights on each device, by name; shared weights count on each device that needs them."""
    size_bytes = resident_weight_bytes(divided.graph, np.array(divided.devices), session.in_single).tolist()
    return dict(zip(session.devices.index.names, size_bytes, strict=True))
