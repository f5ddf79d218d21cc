"""Packing of weights into devices' memories where no single device holds a model, or a proof that there is none.

Legend: U placement units, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, vstack

from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

TIME_LIMIT_S = 2.0
GOOD_ENOUGH = 0.1
INFEASIBLE_STATUS = 2  # of scipy.optimize.milp


class Packing(Enum):
    """The outcome of a packing."""

    FOUND = "found"
    IMPOSSIBLE = "impossible"  # proven
    UNKNOWN = "unknown"  # not found in time


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """The outcome of a packing, and the placement [U] if one was found."""

    status: Packing
    placement: IntArray | None = None


def pack_weights(problem: ScheduleProblem, units: Problem, limit_s: float = TIME_LIMIT_S) -> PackedWeights:
    """Put units where their weights fit, on fast devices as far as possible.

    Every unit goes to one device that supports it, the weights of a device stay within its memory, and so
    do the weights of a unit with the largest result of its ops that take time: a mixed-integer program, given
    ``limit_s`` seconds, and not begun if that is 0. Results of other ops, which need room too, are left to the
    simulation.
    """
    assert units.costs is not None
    unit = units.units.partition.labels
    largest = np.zeros((units.num_units, units.num_devices))
    np.maximum.at(largest, unit, np.where(problem.time_s > 0, problem.output_bytes[:, None], 0.0))
    needed = largest + np.bincount(unit, problem.weight_bytes, units.num_units)[:, None]
    able = units.supported & (needed <= problem.memory_bytes)
    if not able.any(axis=1).all():
        return PackedWeights(Packing.IMPOSSIBLE)
    time_s = np.where(able, np.nan_to_num(units.costs.time_s), np.inf)
    fastest = np.argmin(time_s, axis=1)
    if np.all(np.bincount(fastest, units.costs.weight_bytes, units.num_devices) <= problem.memory_bytes):
        return PackedWeights(Packing.FOUND, fastest)
    if limit_s <= 0:
        return PackedWeights(Packing.UNKNOWN)
    return _packed(np.where(able, time_s, 0.0), able, units.costs.weight_bytes, problem.memory_bytes, limit_s)


def _packed(
    time_s: np.ndarray, able: BoolArray, weight_bytes: np.ndarray, memory_bytes: np.ndarray, limit_s: float
) -> PackedWeights:
    u, d = time_s.shape
    choice = np.arange(u * d)
    unit, device = np.divmod(choice, d)
    share = weight_bytes[unit] / np.maximum(memory_bytes[device], 1.0)  # 0 without a limit
    one_device, within = coo_array((np.ones(u * d), (unit, choice))), coo_array((share, (device, choice)))
    low, high = np.r_[np.ones(u), np.zeros(d)], np.ones(u + d)
    answer = milp(
        time_s.reshape(-1) / max(float(time_s.max()), 1e-300),
        integrality=np.ones(u * d),
        bounds=Bounds(0, able.reshape(-1).astype(np.float64)),
        constraints=LinearConstraint(vstack([one_device, within]).tocsr(), low, high),
        options={"time_limit": limit_s, "mip_rel_gap": GOOD_ENOUGH},
    )
    if answer.x is not None:
        return PackedWeights(Packing.FOUND, np.argmax(answer.x.reshape(u, d), axis=1))
    return PackedWeights(Packing.IMPOSSIBLE if answer.status == INFEASIBLE_STATUS else Packing.UNKNOWN)
