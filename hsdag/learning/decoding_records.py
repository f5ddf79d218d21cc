"""What the loop of sequential decoding reads and writes.

Legend: B episodes, N ops, D devices, F features, H and K hidden widths.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.runtime.simulator.heaps import Records

Float32Array = NDArray[np.float32]

RULES = np.dtype(
    [
        ("epsilon_select", "f8"),  # share of selections that are uniform
        ("epsilon_place", "f8"),  # share of devices that are uniform
        ("is_greedy_select", "i8"),  # take the largest score, ties at random
        ("is_greedy_place", "i8"),
        ("is_listed", "i8"),  # place where an op starts first, as CRITICAL PATH does
        ("is_forced", "i8"),  # follow the order and the devices that are there
        ("is_mean", "i8"),  # ops on a device count by their mean, not by their sum
        ("heat", "f8"),  # temperature of both draws
        ("length_s", "f8"),  # of a balanced schedule
        ("mean_s", "f8"),  # of an op
        ("op_overhead_s", "f8"),
    ],
    align=True,
)


class Scores(NamedTuple):
    """What the networks say of a problem; a device's logit is out . leaky(node + seen of its ops + features)."""

    select: Float32Array  # [N] logits of selection
    node: Float32Array  # [N, K] what an op contributes to the logit of every device
    seen: Float32Array  # [N, K] what an op contributes to its device once it is placed
    inner: Float32Array  # [F, H] first layer on the features of a device
    inner_bias: Float32Array  # [H]
    outer: Float32Array  # [H, K]
    out: Float32Array  # [K]
    direct: Float32Array  # [F] what the features of a device add to its logit by themselves
    own: Float32Array  # [N, D] what is added to the logit of an op on a device


class Room(NamedTuple):
    """Room for one episode."""

    of_op: FloatArray  # [N, 2] start and end in seconds
    home: IntArray  # [N]
    weight: FloatArray  # [N] of an op among the candidates
    candidate: IntArray  # [N]
    waiting: IntArray  # [N] inputs that are not placed yet
    readers: IntArray  # [N] consumers that are not placed yet, edge by edge
    devices: Records  # [D] ROOM
    taken: Float32Array  # [D, K] contributions of the ops on a device
    hidden: Float32Array  # [H]
    total: Float32Array  # [K]
    random: NDArray[np.uint64]  # [1]


ROOM = np.dtype(
    [
        ("free_s", "f8"),  # end of its last op
        ("work_s", "f8"),  # of its ops
        ("held_bytes", "f8"),  # weights of its ops, and results that ops wait for which are not placed yet
        ("is_able", "i8"),  # whether the op at hand may be placed there
        ("count", "i8"),  # of its ops
        ("ready_s", "f8"),  # for the op at hand: when its inputs are there
        ("sent_s", "f8"),  # transfers of them
        ("input_bytes", "f8"),  # of them that are on the device
        ("began_s", "f8"),  # earliest start of a producer
        ("ended_s", "f8"),  # latest end of a producer
        ("made_s", "f8"),  # work of producers
        ("logit", "f8"),
        ("weight", "f8"),
    ],
    align=True,
)


class Episodes(NamedTuple):
    """What was decided, and what each decision was based on."""

    order: IntArray  # [B, N] the op of every step
    home: IntArray  # [B, N] the device of every step's op
    ready: IntArray  # [B, N] the step from which on an op, by index, was a candidate
    log_p: FloatArray  # [B, N, 2] of the behaviour: selection, device
    features: Float32Array  # [B, N, D, F] by step
    able: BoolArray  # [B, N, D] by step, where the op could be placed
