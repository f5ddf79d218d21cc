"""Choice of the devices that get a copy of the whole model each, in a search for throughput.

Devices that cannot hold the model may run a pipeline, or divide its ops, beside the copies on the others. Devices that
can hold it gain nothing from either, which does the same work as copies and sends tensors as well.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.commands.place.limits import too_large
from hsdag.commands.place.session import Session
from hsdag.commands.place.shards import ShardProposals, sharded_candidate
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.placement.divided import sharded_fields
from hsdag.ir.placement.placement import CopyRecord
from hsdag.methods.cuts.pipeline import balanced_stages, fitting_stages
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.pins import restricted
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.memory import MemoryCheck
from hsdag.search.options import PlaceOptions

NUM_SETS = 2
"""Number of sets of devices to compare, the best by simulation."""


@dataclass(frozen=True)
class Copies:
    """Copies of the whole model on several devices.

    Attributes:
        devices: Indices of the devices that have a copy.
        period_s: Simulated seconds per inference, infinite if unknown.
        pipeline: Stages, or regions divided, over further devices beside the copies.
    """

    devices: tuple[int, ...]
    period_s: float
    pipeline: Plan | Sharding | None = None

    def candidate(self, session: Session, problem: Problem) -> Candidate:
        """Return the candidate that runs the copies; a pipeline gets one request more than it has devices."""
        beside: list[tuple[str | Candidate, int | None]] = []
        if self.pipeline is not None:
            if isinstance(self.pipeline, Plan):
                pipeline = session.placed(problem, self.pipeline, "work-conserving")
            else:
                pipeline = sharded_candidate(session, self.pipeline)
            beside = [(pipeline, len(devices_in_use(self.pipeline)) + 1)]
        names = session.devices.index.openvino_named(self.devices)
        return Candidate.copied([*((name, None) for name in names), *beside])

    def homes(self, problem: Problem) -> list[IntArray]:
        """Return the device of every op [N], for each copy and for a pipeline of stages."""
        alone = [np.full(problem.units.fine.num_ops, d) for d in self.devices]
        return [*alone, problem.expand(self.pipeline.placement)] if isinstance(self.pipeline, Plan) else alone

    def records(self, problem: Problem, requests: Sequence[int]) -> tuple[CopyRecord, ...]:
        """Return the copies as a placement file has them, with the number of ``requests`` of each."""
        names = problem.devices
        copies = [CopyRecord(device=names[d], requests=count) for d, count in zip(self.devices, requests, strict=False)]
        if isinstance(self.pipeline, Sharding):
            fields = sharded_fields(self.pipeline.regions, self.pipeline.devices, problem.units.fine, names)
            copies.append(CopyRecord(affinity=fields["affinity"], shards=fields["shards"], requests=requests[-1]))
        elif self.pipeline is not None:
            homes = zip(problem.units.fine.canonical_names, self.homes(problem)[-1].tolist(), strict=True)
            copies.append(CopyRecord(affinity={op: names[d] for op, d in homes}, requests=requests[-1]))
        return tuple(copies)


def proposed_copies(
    session: Session, options: PlaceOptions, profile: ModelProfile | None, problem: Problem
) -> dict[str, Copies]:
    """Return the copies to compare, each over at least two devices, by name; none if the options exclude them.

    Every copy must fit into the memory of its device. Pins exclude copies.
    """
    if session.is_on_torch or options.pins or not options.objective.is_steady or options.executor == "hetero":
        return {}
    placed = session.devices.placed
    ruled_out = too_large(session, profile)
    able = [d for d, spec in enumerate(placed) if spec.name not in ruled_out and not len(session.unsupported_ops(spec))]
    if profile is None:
        sets = [Copies(tuple(able), np.inf)] if len(able) > 1 else []
    else:
        proposals = ShardProposals(session, options, profile)
        others = [d for d in range(len(placed)) if d not in able]
        costs = proposals.costs
        whole_s = np.nan_to_num(costs.cut_costs.op_s).sum(axis=0) + costs.cut_costs.launch_s
        over: list[tuple[Plan | Sharding, float] | None]
        over = [best_pipeline(problem, costs, others), proposals.beside(others)]
        pipeline = min(filter(None, over), key=lambda pair: pair[1], default=None)
        sets = best_sets(able, whole_s, costs.slowdown, pipeline)
        undisturbed = best_sets(able, whole_s, None, pipeline)[:1]  # measured slow-downs may be wrong
        sets += [copies for copies in undisturbed if copies.devices not in [other.devices for other in sets]]
    return {f"copies {rank}": copies for rank, copies in enumerate(sets, start=1)}


def best_sets(
    able: Sequence[int],
    whole_s: FloatArray,
    slowdown: FloatArray | None,
    pipeline: tuple[Plan | Sharding, float] | None = None,
) -> list[Copies]:
    """Return the NUM_SETS sets of devices with the largest rates of inferences.

    Args:
        able: Devices that can run the whole model.
        whole_s: Seconds of an inference on each device alone [D].
        slowdown: Factors by which a device is slowed by each other one of its set [D, D].
        pipeline: Stages or shards over other devices, and its seconds per inference; it counts as one more device.
    """
    num = len(whole_s)
    slow = np.ones((num + 1, num + 1))
    slow[:num, :num] = 1.0 if slowdown is None else slowdown
    if pipeline is not None:
        used = devices_in_use(pipeline[0])
        slow[num], slow[:num, num] = slow[used].max(axis=0), slow[:num, used].prod(axis=1)
        able, whole_s = [*able, num], np.append(whole_s, pipeline[1])
    sets = []
    for size in range(2, len(able) + 1):
        for chosen in itertools.combinations(able, size):
            rates = [1.0 / (whole_s[d] * np.prod([slow[d, e] for e in chosen if e != d])) for d in chosen]
            plan = pipeline[0] if pipeline is not None and num in chosen else None
            sets.append(Copies(tuple(d for d in chosen if d < num), float(1.0 / np.sum(rates)), plan))
    return sorted(sets, key=lambda copies: copies.period_s)[:NUM_SETS]


def devices_in_use(pipeline: Plan | Sharding) -> list[int]:
    """Return the devices that stages or shards use."""
    if isinstance(pipeline, Plan):
        return sorted(set(pipeline.placement.tolist()))
    return sorted({d for region in pipeline.regions for d in region.shares}.union(pipeline.devices))


def best_pipeline(problem: Problem, costs: WorkConservingCosts, devices: Sequence[int]) -> tuple[Plan, float] | None:
    """Return balanced stages over several of these devices that fit into memory, and their simulated seconds.

    None if there are none.
    """
    supported = problem.supported & np.isin(np.arange(problem.num_devices), devices)
    if not supported.any(axis=1).all():
        return None
    by_unit = restricted(problem, supported).known_costs
    units = fitting_stages(by_unit, MemoryCheck(by_unit, problem.semantics), balanced_stages, boundary=1.0)
    if units is None or not Plan(units).is_split:
        return None
    return Plan(units), float(costs.period_s(problem.expand(units)[None])[0])
