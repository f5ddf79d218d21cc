"""List schedulers HEFT, CPOP, greedy, critical path and ENUMERATIVEOPTIMIZER. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import BoolArray, Csr, FloatArray, IntArray, inverse_of, topological_order
from hsdag.methods.base import NoOptions
from hsdag.methods.lists.base import ListPlacer, SchedulePlacer
from hsdag.methods.lists.load_balance import balanced_placement
from hsdag.methods.lists.schedule import ListSchedule, list_schedule
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import Levels, Tables, levels_of, on_grid, tables_of
from hsdag.search.evaluators.memory import over_memory


class HeftPlacer(SchedulePlacer):
    """Topcuoglu et al. 2002, section 4.1: ops by upward rank, each in the idle time where it ends first.

    Only idle time of positive length between ops counts. For throughput, ops in the same order balance the loads.
    """

    name = "heft"
    insertion = True

    def urgency(self, tables: Tables) -> FloatArray:
        return levels_of(tables).upward_s


class CpopPlacer(SchedulePlacer):
    """CPOP (Topcuoglu et al. 2002, section 4.2): ready ops by upward plus downward rank, a critical path on one device.

    Of the devices that support the whole path, the one that takes the least time for it gets it; if none does, the path
    is treated like other ops, which go into the gap where they end first. For throughput, ops in the same order balance
    the loads, without a path.
    """

    name = "cpop"

    def urgency(self, tables: Tables) -> FloatArray:
        levels = levels_of(tables)
        return on_grid(levels.upward_s + levels.downward_s)

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        tables = tables_of(costs)
        path = critical_path(levels_of(tables), np.diff(tables.in_first) == 0)
        path_s = tables.time_s[path].sum(axis=0)
        pinned = np.full(costs.num_ops, -1, dtype=np.int64)
        if np.isfinite(path_s.min()):
            pinned[path] = int(np.argmin(path_s))
        return list_schedule(tables, self.urgency(tables), insertion=True, pinned=pinned)


def critical_path(levels: Levels, is_entry: BoolArray) -> IntArray:
    """Return the ops of a longest path at mean costs, in order, from an op without inputs; ties by op index."""
    path = [int(np.argmax(np.where(is_entry, levels.upward_s, -1.0)))]
    while levels.heaviest[path[-1]] >= 0:
        path.append(int(levels.heaviest[path[-1]]))
    return np.asarray(path, dtype=np.int64)


class GreedyPlacer(SchedulePlacer):
    """DiviML's Greedy (section V-A); for throughput the load of the busiest resource is kept smallest.

    The latency so far is the maximum of its previous value and the op's end, so the device where the op ends first
    keeps it smallest; that device is taken even if others keep it as small.
    """

    name = "greedy"

    def urgency(self, tables: Tables) -> FloatArray:
        num = len(tables.order)
        breadth_first = topological_order(num, np.repeat(np.arange(num), np.diff(tables.out_first)), tables.out_op)
        return -inverse_of(breadth_first).astype(np.float64)


@dataclass(frozen=True)
class CriticalPathOptions:
    """Hyper-parameters of method critical-path. Raises OptionError for a value out of range."""

    num_runs: int = 50
    """Number of schedules, of which the best is reported (DOPPLER, section 6)."""
    spread: float = 0.05
    """Levels of all runs but the first are multiplied by a random factor between 1 - spread and 1 + spread."""

    def __post_init__(self) -> None:
        if self.num_runs < 1 or not 0 <= self.spread < 1:
            raise OptionError("critical-path takes num_runs of at least 1 and a spread in [0, 1)")


class CriticalPathPlacer(ListPlacer[CriticalPathOptions]):
    """CRITICAL PATH (Kwok & Ahmad 1999), DOPPLER's baseline and teacher.

    Select the ready op with the largest b-level: the longest way to the end, including its own time and communication
    (the name in the literature; DOPPLER calls it the t-level). Place it on the device where it can start first, then
    ends first, after all ops of the device. DOPPLER does not say how its runs differ; here ties between levels and
    devices are broken at random, and levels within ``spread`` of each other may change places. The first run is
    deterministic. For throughput, the device that is least loaded without the op replaces the one with the earliest
    start.
    """

    name = "critical-path"
    options_type = CriticalPathOptions

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """Yield ``num_runs`` plans; the same seed gives the same plans."""
        costs = problem.known_costs
        spread = self.options.spread
        tables = tables_of(costs)
        level_s = levels_of(tables).upward_s
        rng = np.random.default_rng(seed)
        for run in range(self.options.num_runs):
            factor = rng.uniform(1 - spread, 1 + spread, costs.num_ops) if run else np.ones(costs.num_ops)
            devices = rng.permutation(costs.num_devices) if run else np.arange(costs.num_devices)
            if problem.objective.is_steady:
                yield Plan(balanced_placement(tables, level_s * factor, problem.semantics.links, by_start=True))
            else:
                yield list_schedule(tables, level_s * factor, by_start=True, device_order=devices).plan


class EnumerativePlacer(ListPlacer[NoOptions]):
    """ENUMERATIVEOPTIMIZER (DOPPLER, appendix B, Algorithm 4), for both latency and throughput.

    Takes meta-ops in topological order, of each first the shards, then the reductions. Assigning shards to devices
    costs the time to bring in their inputs; the assignment problem is solved instead of trying all permutations. No
    device gets two shards; if there are more shards than devices, they are assigned in rounds by op index. An op
    without a meta-op is one of its own.
    """

    num_tried = float("inf")
    name = "enumerative"
    gives_order = False

    def check(self, problem: Problem) -> None:
        """Raise OptionError, also if no op has a meta-op, or meta-ops depend on each other in a cycle."""
        super().check(problem)
        shard_groups(problem.known_costs)

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """Yield one plan."""
        costs = problem.known_costs
        tables = tables_of(costs)
        device = np.full(costs.num_ops, -1, dtype=np.int64)
        used_bytes = np.zeros(costs.num_devices)
        for shards in shard_groups(costs):
            for first in range(0, len(shards), costs.num_devices):
                ops = shards[first : first + costs.num_devices]
                device[ops] = _best_assignment(_input_costs_s(tables, costs, ops, device, used_bytes))
                np.add.at(used_bytes, device[ops], costs.weight_bytes[ops])
        yield Plan(device)


def shard_groups(problem: ScheduleProblem) -> list[IntArray]:
    """Return the ops of each meta-op's shards, then of its reductions; meta-ops in topological order, ops by index.

    Raises OptionError if no op has a meta-op, or meta-ops depend on each other in a cycle.
    """
    names = problem.labels.meta_ops
    if not any(names):
        raise OptionError(
            f"method 'enumerative' needs the meta-op of each op, which problem {problem.name!r} does not give; "
            'give ops a "meta_op" and a "role", or use another method'
        )
    number: dict[str, int] = {}
    meta = np.asarray([number.setdefault(name or f"\0{v}", len(number)) for v, name in enumerate(names)])
    src, dst = meta[problem.edge_src], meta[problem.edge_dst]
    apart = src != dst
    try:
        order = topological_order(len(number), src[apart], dst[apart])
    except ValueError as error:
        raise OptionError(f"meta-ops of problem {problem.name!r} depend on each other in a cycle") from error
    members = Csr.build(len(number), meta, np.arange(problem.num_ops))
    is_reduce = np.asarray([role == "reduce" for role in problem.labels.roles], dtype=np.bool_)
    groups = [
        ops[is_reduce[ops] == reduce] for m in order.tolist() for ops in [members.of(m)] for reduce in (False, True)
    ]
    return [group for group in groups if len(group)]


def _input_costs_s(
    tables: Tables, problem: ScheduleProblem, ops: IntArray, device: IntArray, used_bytes: FloatArray
) -> FloatArray:
    """Return the seconds to bring the inputs of ops to devices, [len(ops), D]; infinite if a device cannot take an op.

    Transfers are counted one after another; inputs from the same group are not placed yet and therefore left out.
    ``used_bytes`` [D] are the bytes of weights that devices have so far.
    """
    cost_s = np.zeros((len(ops), problem.num_devices))
    for i, v in enumerate(ops.tolist()):
        for k in range(int(tables.in_first[v]), int(tables.in_first[v + 1])):
            home = device[tables.in_op[k]]
            if home >= 0:
                cost_s[i] += tables.latency_s[home] + tables.in_bytes[k] / tables.bandwidth_bytes_per_s[home]
        full = over_memory(problem, used_bytes + problem.weight_bytes[v])
        able = problem.supported[v] & ~full if (problem.supported[v] & ~full).any() else problem.supported[v]
        cost_s[i, ~able] = np.inf
    return cost_s


def _best_assignment(cost_s: FloatArray) -> IntArray:
    """Return different devices for all ops at the least cost; if impossible, each op's cheapest device."""
    try:
        return np.asarray(linear_sum_assignment(cost_s)[1], dtype=np.int64)
    except ValueError:  # every choice has an infinite cost
        return np.asarray(np.argmin(cost_s, axis=1), dtype=np.int64)
