"""EnumerativePlacer: sharded ops one after another, each on the best permutation of devices over its shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from hsdag.evaluators.memory import over_memory
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import Csr, FloatArray, IntArray, topological_order
from hsdag.placers.base import NoOptions
from hsdag.placers.lists.base import ListPlacer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import Tables, tables_of


class EnumerativePlacer(ListPlacer[NoOptions]):
    """ENUMERATIVEOPTIMIZER (DOPPLER, appendix B, Algorithm 4), for both latency and throughput.

    Meta-ops in topological order, first their shards, then their reductions. A permutation of the devices over the
    shards costs the time to bring in their inputs; an assignment problem gives the cheapest without trying them all. No
    device gets two shards; where there are more shards than devices, they are dealt in rounds by op index. Ops without
    a meta-op stand for themselves.
    """

    tries_few = False
    name = "enumerative"

    gives_order = False

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Raise OptionError when no op has a meta-op, or meta-ops depend on each other, too."""
        super().check(problem)
        assert problem.costs is not None
        shard_groups(problem.costs)

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """One placement."""
        costs = problem.costs
        assert costs is not None
        tables = tables_of(costs)
        device, held = np.full(costs.num_ops, -1, dtype=np.int64), np.zeros(costs.num_devices)
        for shards in shard_groups(costs):
            for first in range(0, len(shards), costs.num_devices):
                ops = shards[first : first + costs.num_devices]
                device[ops] = _best_assignment(_input_costs_s(tables, costs, ops, device, held))
                np.add.at(held, device[ops], costs.weight_bytes[ops])
        yield Plan(device)


def shard_groups(problem: ScheduleProblem) -> list[IntArray]:
    """The ops of each meta-op's shards, then of its reductions, meta-ops in topological order, ops by index."""
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
    tables: Tables, problem: ScheduleProblem, ops: IntArray, device: IntArray, held: FloatArray
) -> FloatArray:
    """[len(ops), D] seconds to bring the inputs of each op to each device, infinite for one that may not take it.

    One after another; inputs from the same group are not placed yet and left out.
    """
    cost_s = np.zeros((len(ops), problem.num_devices))
    for i, v in enumerate(ops.tolist()):
        for k in range(int(tables.in_first[v]), int(tables.in_first[v + 1])):
            home = device[tables.in_op[k]]
            if home >= 0:
                cost_s[i] += tables.latency_s[home] + tables.in_bytes[k] / tables.bandwidth_bytes_per_s[home]
        full = over_memory(problem, held + problem.weight_bytes[v])
        able = problem.supported[v] & ~full if (problem.supported[v] & ~full).any() else problem.supported[v]
        cost_s[i, ~able] = np.inf
    return cost_s


def _best_assignment(cost_s: FloatArray) -> IntArray:
    """The devices of ops, all different, at the least cost; where that is not possible, each op on its best device."""
    try:
        return np.asarray(linear_sum_assignment(cost_s)[1], dtype=np.int64)
    except ValueError:  # every choice has an infinite cost
        return np.asarray(np.argmin(cost_s, axis=1), dtype=np.int64)


PLACER = EnumerativePlacer
