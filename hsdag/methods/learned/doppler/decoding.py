"""Sequential decoding: select an op, place it, and go on, from tables that one pass of the networks gave.

Where message passing runs once per episode (DOPPLER §4.3), all that changes within one is what is placed already. A
compiled loop over tables decodes an episode of a few hundred ops in about a millisecond; what it recorded is enough to
compute all log-probabilities again in one batched pass.

Legend: B episodes, N ops, D devices, F features of a device, H and K hidden widths.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined
from hsdag.runtime.machine.usable import in_parts, usable_cpus
from hsdag.runtime.problem.tables import Tables, lengths_of
from hsdag.runtime.simulator.machine import Records

Float32Array = NDArray[np.float32]
A = TypeVar("A", torch.Tensor, Float32Array)


class Scores(NamedTuple, Generic[A]):
    """What the networks say of a problem; a device's logit is out . leaky(node + seen of its ops + features)."""

    select: A  # [N] logits of selection
    node: A  # [N, K] what an op contributes to the logit of every device
    seen: A  # [N, K] what an op contributes to its device once it is placed
    inner: A  # [F, H] first layer on the features of a device
    inner_bias: A  # [H]
    outer: A  # [H, K]
    out: A  # [K]
    direct: A  # [F] what the features of a device add to its logit by themselves
    own: A  # [N, D] what is added to the logit of an op on a device


class Rules(NamedTuple):
    """How ops are selected and placed: by a softmax of scores over a temperature ``heat``, a ``share`` uniformly."""

    heat: tuple[float, float] = (1.0, 1.0)  # of selection, of placement
    share: tuple[float, float] = (0.0, 0.0)
    is_mean: bool = False  # embeddings of the ops on a device count by their mean, not by their sum


OP = np.dtype(
    [
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("home", "i8"),  # its device
        ("weight", "f8"),  # of a candidate in the draw
        ("waiting", "i8"),  # inputs that are not placed yet
        ("readers", "i8"),  # consumers that are not placed yet, edge by edge
    ],
    align=True,
)
DEVICE = np.dtype(
    [
        ("free_s", "f8"),  # end of its last op
        ("work_s", "f8"),  # of its ops
        ("held_bytes", "f8"),  # weights of its ops, and results that ops wait for which are not placed yet
        ("count", "i8"),  # of its ops
        ("ready_s", "f8"),  # for the op at hand: when its inputs are there
        ("sent_s", "f8"),  # transfers of them
        ("input_bytes", "f8"),  # of them that are on the device
        ("input_share", "f8"),
        ("began_s", "f8"),  # earliest start of a producer
        ("ended_s", "f8"),  # latest end of a producer
        ("made_s", "f8"),  # work of producers
        ("memory", "f8"),  # share of it that is taken with the op
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
    log_p: FloatArray  # [B, N, 2] as it was drawn: selection, device
    features: Float32Array  # [B, N, D, F] by step
    able: BoolArray  # [B, N, D] by step, where the op could be placed


PAPER_FEATURES = 5
FEATURES = (
    "work on the device",
    "work of the op's producers on the device",
    "earliest start of a producer on the device",
    "latest end of a producer on the device",
    "earliest start of the op",
    "start, later than on the best device",
    "end, later than on the best device",
    "time of the op, longer than on the fastest device",
    "share of the op's input that is on the device",
    "end of the device's last op, later than the first device to be free",
    "share of memory that is taken with the op",
    "how long the device would wait for the op's inputs",
    "time of transfers to the device",
)
"""Dynamic features of a device for the op at hand. The first five are DOPPLER's (App. E.2), in units of the length of
a balanced schedule; lengths of the others are in units of the mean op, and cut at ``MOST``."""
START = FEATURES.index("earliest start of the op")
START_LATER = FEATURES.index("start, later than on the best device")
END_LATER = FEATURES.index("end, later than on the best device")
MOST = 10.0
SLOPE = 0.01
"""Of LeakyReLU below zero (eq. 7)."""
LEAST = 1e-200
"""Sum of the weights of candidates below which a weight may have lost digits."""


class Decoder(NamedTuple):
    """What the compiled loop reads, and what it writes for one episode."""

    t: Tables
    s: Scores[Float32Array]
    rules: Rules
    length_s: float  # of a balanced schedule
    mean_s: float  # of an op
    ops: Records  # [N] OP
    devices: Records  # [D] DEVICE
    candidate: IntArray  # [N]
    taken: Float32Array  # [D, K] contributions of the ops on a device
    hidden: Float32Array  # [H]
    total: Float32Array  # [K]


@bare
def decode_many(c: Decoder, random: FloatArray, is_forced: bool, found: Episodes) -> None:
    """Decode an episode for each row of ``random`` [B, N, 2], numbers in [0, 1), into ``found``.

    Where it ``is_forced``, the order and the devices are followed that are there.
    """
    t = c.t
    for b in range(len(random)):
        unit, count = 0.0, _begin(c)
        for step in range(len(c.ops)):
            unit, total = _weigh_candidates(c, unit, count)
            v = _select(c, found, b, step, count, total, -1.0 if is_forced else random[b, step, 0])
            count -= 1
            _look(c, v)
            _permit(c, v, found.able[b, step])
            _describe(c, v, found.features[b, step])
            home = _place(c, v, found, b, step, -1.0 if is_forced else random[b, step, 1])
            _settle(c, v, home)
            for k in range(t.out_first[v], t.out_first[v + 1]):
                u = t.out_op[k]
                c.ops[u].waiting -= 1
                if c.ops[u].waiting == 0:
                    found.ready[b, u] = step + 1
                    count = _add(c, unit, count, u)


@inlined
def _begin(c: Decoder) -> int:
    """Clear what an episode is decoded in; ops without inputs are the first candidates, which are counted."""
    c.taken[:] = 0.0
    for d in range(len(c.devices)):
        c.devices[d].free_s = 0.0
        c.devices[d].work_s = 0.0
        c.devices[d].held_bytes = 0.0
        c.devices[d].count = 0
    count = 0
    for v in range(len(c.ops)):
        c.ops[v].waiting = c.t.in_first[v + 1] - c.t.in_first[v]
        c.ops[v].readers = c.t.out_first[v + 1] - c.t.out_first[v]
        if c.ops[v].waiting == 0:
            count = _add(c, 0.0, count, v)
    return count


@inlined
def _add(c: Decoder, unit: float, count: int, v: int) -> int:
    """v is one of the candidates, of which there are ``count``; its weight is 1 for a score of ``unit``."""
    c.candidate[count] = v
    c.ops[v].weight = np.exp((c.s.select[v] - unit) / c.rules.heat[0])
    return count + 1


@inlined
def _weigh_candidates(c: Decoder, unit: float, count: int) -> tuple[float, float]:
    """The unit and the sum of the candidates' weights: another unit where the sum is too small or too large for it."""
    total = 0.0
    for i in range(count):
        total += c.ops[c.candidate[i]].weight
    if not LEAST <= total < np.inf:
        unit, total = -np.inf, 0.0
        for i in range(count):
            unit = max(unit, c.s.select[c.candidate[i]])
        for i in range(count):
            _add(c, unit, i, c.candidate[i])
            total += c.ops[c.candidate[i]].weight
    return unit, total


@inlined
def _select(c: Decoder, found: Episodes, b: int, step: int, count: int, total: float, random: float) -> int:
    """Select a candidate, the op that is there where ``random`` is negative; record its log-probability."""
    at, scale, share = -1, (1.0 - c.rules.share[0]) / total, c.rules.share[0] / count
    left = random
    while left >= 0.0 and at + 1 < count:
        at += 1
        left -= scale * c.ops[c.candidate[at]].weight + share
    if random < 0.0:
        at = 0
        while c.candidate[at] != found.order[b, step]:
            at += 1
    v: int = c.candidate[at]
    found.log_p[b, step, 0] = np.log(scale * c.ops[v].weight + share)
    found.order[b, step] = v
    c.candidate[at] = c.candidate[count - 1]
    return v


@inlined
def _look(c: Decoder, v: int) -> None:
    """Gather what the devices hold of v's inputs and of their memory, and when the inputs would be there."""
    t, received = c.t, 0.0
    for d in range(len(c.devices)):
        c.devices[d].ready_s = 0.0
        c.devices[d].sent_s = 0.0
        c.devices[d].input_bytes = 0.0
        c.devices[d].began_s = np.inf
        c.devices[d].ended_s = 0.0
        c.devices[d].made_s = 0.0
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        home, start_s, end_s = c.ops[u].home, c.ops[u].start_s, c.ops[u].end_s
        for d in range(len(c.devices)):
            link_s = t.latency_s[home, d] + t.in_bytes[k] / t.bandwidth_bytes_per_s[home, d]
            c.devices[d].ready_s = max(c.devices[d].ready_s, end_s + link_s)
            c.devices[d].sent_s += link_s
        received += t.in_bytes[k]
        c.devices[home].input_bytes += t.in_bytes[k]
        c.devices[home].began_s = min(c.devices[home].began_s, start_s)
        c.devices[home].ended_s = max(c.devices[home].ended_s, end_s)
        c.devices[home].made_s += end_s - start_s
    for d in range(len(c.devices)):
        held = c.devices[d].held_bytes + received - c.devices[d].input_bytes + t.weight_bytes[v] + t.output_bytes[v]
        c.devices[d].memory = held / max(t.memory_bytes[d], 1.0)
        c.devices[d].input_share = c.devices[d].input_bytes / received if received > 0.0 else 0.0


@inlined
def _permit(c: Decoder, v: int, able: BoolArray) -> None:
    """Mark the devices that support v and have room for it; where none has, the one that v would overfill least."""
    roomiest, is_able = -1, False
    for d in range(len(able)):
        able[d] = c.t.time_s[v, d] < np.inf and c.devices[d].memory <= 1.0
        is_able = is_able or able[d]
        if c.t.time_s[v, d] < np.inf and (roomiest < 0 or c.devices[d].memory < c.devices[roomiest].memory):
            roomiest = d
    if not is_able:
        able[roomiest] = True


@inlined
def _describe(c: Decoder, v: int, x: Float32Array) -> None:
    """Fill the features ``x`` [D, F] of the devices for op v."""
    length_s, mean_s = c.length_s, c.mean_s
    first_s, first_end_s, first_free_s, least_s = np.inf, np.inf, np.inf, np.inf
    for d in range(len(x)):
        time_s, start_s = c.t.time_s[v, d], max(c.devices[d].free_s, c.devices[d].ready_s)
        first_free_s = min(first_free_s, c.devices[d].free_s)
        if time_s < np.inf:
            first_s, first_end_s = min(first_s, start_s), min(first_end_s, start_s + time_s)
            least_s = min(least_s, time_s)
    for d in range(len(x)):
        device, time_s = c.devices[d], min(c.t.time_s[v, d], MOST * (least_s + mean_s))
        start_s = max(device.free_s, device.ready_s)
        x[d, 0] = device.work_s / length_s
        x[d, 1] = device.made_s / length_s
        x[d, 2] = device.began_s / length_s if device.began_s < np.inf else 0.0
        x[d, 3] = device.ended_s / length_s
        x[d, 4] = start_s / length_s
        if x.shape[1] > PAPER_FEATURES:
            x[d, 5] = min((start_s - first_s) / mean_s, MOST)
            x[d, 6] = min((start_s + time_s - first_end_s) / mean_s, MOST)
            x[d, 7] = min((time_s - least_s) / mean_s, MOST)
            x[d, 8] = device.input_share
            x[d, 9] = min((device.free_s - first_free_s) / mean_s, MOST)
            x[d, 10] = min(device.memory, MOST)
            x[d, 11] = max(min((device.ready_s - device.free_s) / mean_s, MOST), -MOST)
            x[d, 12] = min(device.sent_s / mean_s, MOST)


@inlined
def _place(c: Decoder, v: int, found: Episodes, b: int, step: int, random: float) -> int:
    """Choose v's device, the one that is there where ``random`` is negative; record its log-probability."""
    able, x = found.able[b, step], found.features[b, step]
    num_able, highest, total, left = 0, -np.inf, 0.0, random
    for d in range(len(able)):
        if able[d]:
            num_able += 1
            c.devices[d].logit = _logit(c, v, d, x[d])
            highest = max(highest, c.devices[d].logit)
    for d in range(len(able)):
        c.devices[d].weight = np.exp((c.devices[d].logit - highest) / c.rules.heat[1]) if able[d] else 0.0
        total += c.devices[d].weight
    scale, share = (1.0 - c.rules.share[1]) / total, c.rules.share[1] / num_able
    home: int = found.home[b, step]
    for d in range(len(able)):
        p = scale * c.devices[d].weight + share
        if able[d] and p > 0.0 and left >= 0.0:
            home = d
            left -= p
    found.log_p[b, step, 1] = np.log(scale * c.devices[home].weight + share)
    found.home[b, step] = home
    return home


@inlined
def _logit(c: Decoder, v: int, d: int, x: Float32Array) -> float:
    """LeakyReLU of the sum of all contributions, times the last layer (eq. 6 and 7)."""
    s, scale = c.s, np.float32(1.0 / max(c.devices[d].count, 1) if c.rules.is_mean else 1.0)
    for k in range(len(c.total)):
        c.total[k] = s.node[v, k] + c.taken[d, k] * scale
    for h in range(len(c.hidden)):
        c.hidden[h] = s.inner_bias[h]
    for f in range(len(x)):
        for h in range(len(c.hidden)):
            c.hidden[h] += x[f] * s.inner[f, h]
    for h in range(len(c.hidden)):
        if c.hidden[h] > 0.0:
            for k in range(len(c.total)):
                c.total[k] += c.hidden[h] * s.outer[h, k]
    logit = np.float64(s.own[v, d])
    for k in range(len(c.total)):
        logit += s.out[k] * (c.total[k] if c.total[k] > 0.0 else np.float32(SLOPE) * c.total[k])
    for f in range(len(x)):
        logit += s.direct[f] * x[f]
    return logit


@inlined
def _settle(c: Decoder, v: int, home: int) -> None:
    """v runs on its device behind all that is there; results that no op waits for any more leave room."""
    t, start_s = c.t, max(c.devices[home].free_s, c.devices[home].ready_s)
    c.ops[v].home = home
    c.ops[v].start_s = start_s
    c.ops[v].end_s = start_s + t.time_s[v, home]
    c.devices[home].free_s = start_s + t.time_s[v, home] + t.op_overhead_s
    c.devices[home].work_s += t.time_s[v, home]
    c.devices[home].held_bytes += t.weight_bytes[v]
    c.devices[home].count += 1
    for k in range(len(c.total)):
        c.taken[home, k] += c.s.seen[v, k]
    if c.ops[v].readers > 0:
        c.devices[home].held_bytes += t.output_bytes[v]
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        c.ops[u].readers -= 1
        if c.ops[u].readers == 0:
            c.devices[c.ops[u].home].held_bytes -= t.output_bytes[u]


def decode(
    tables: Tables,
    scores: Scores[Float32Array],
    rules: Rules,
    random: FloatArray,
    forced: tuple[IntArray, IntArray] | None = None,
) -> Episodes:
    """[B] episodes on all cores the process may use, each by its numbers ``random`` [B, N, 2] in [0, 1).

    ``forced`` are the ops [B, N] and devices [B, N] of every step, to record what led to them.
    """
    (n, d), num, (num_features, h), k = tables.time_s.shape, len(random), scores.inner.shape, len(scores.out)
    order, home = forced or (np.zeros((num, n)), np.zeros((num, n)))
    found = Episodes(
        order=order.astype(np.int64),
        home=home.astype(np.int64),
        ready=np.tile(np.where(np.diff(tables.in_first) == 0, 0, n), (num, 1)),
        log_p=np.zeros((num, n, 2)),
        features=np.zeros((num, n, d, num_features), np.float32),
        able=np.zeros((num, n, d), np.bool_),
    )

    def run(part: slice) -> None:
        decoder = Decoder(
            tables,
            scores,
            rules,
            *lengths_of(tables),
            ops=np.zeros(n, OP),
            devices=np.zeros(d, DEVICE),
            candidate=np.zeros(n, np.int64),
            taken=np.zeros((d, k), np.float32),
            hidden=np.zeros(h, np.float32),
            total=np.zeros(k, np.float32),
        )
        decode_many(decoder, random[part], forced is not None, Episodes._make(column[part] for column in found))

    in_parts(run, num, min(usable_cpus(), num // 4))
    return found
