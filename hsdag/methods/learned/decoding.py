"""Sequential decoding: select an op, place it, and go on, from tables that one pass of the networks gave.

Where message passing runs once per episode (DOPPLER §4.3), all that changes within one is what is placed already. A
compiled loop over tables decodes an episode of a few hundred ops in about a millisecond; what it recorded is enough to
compute all log-probabilities again in one batched pass.

Legend: B episodes, N ops, D devices, F features of a device, H and K hidden widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined
from hsdag.runtime.machine.usable import in_parts, usable_cpus
from hsdag.runtime.problem.tables import Tables, lengths_of
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


@bare
def decode_many(t: Tables, s: Scores, rules: Records, r: Room, seeds: NDArray[np.uint64], found: Episodes) -> None:
    """Decode an episode for each of ``seeds`` [B] into ``found``."""
    for b in range(len(seeds)):
        r.random[0] = seeds[b]
        count = _begin(t, s, rules, r)
        for step in range(len(r.home)):
            v = _select(s, rules, r, found, b, step, count)
            count -= 1
            _look(t, r, v)
            _permit(t, r, v, found.able[b, step])
            _describe(t, rules, r, v, found.features[b, step])
            home = _place(t, s, rules, r, v, found, b, step)
            _settle(t, s, r, v, home, rules[0].op_overhead_s)
            for k in range(t.out_first[v], t.out_first[v + 1]):
                u = t.out_op[k]
                r.waiting[u] -= 1
                if r.waiting[u] == 0:
                    found.ready[b, u] = step + 1
                    r.candidate[count] = u
                    count += 1


@inlined
def _begin(t: Tables, s: Scores, rules: Records, r: Room) -> int:
    """Clear the room and weigh the ops; those without inputs are the first candidates, which are counted."""
    for d in range(len(r.devices)):
        r.devices[d].free_s = 0.0
        r.devices[d].work_s = 0.0
        r.devices[d].held_bytes = 0.0
        r.devices[d].count = 0
    count = 0
    for v in range(len(r.home)):
        r.waiting[v] = t.in_first[v + 1] - t.in_first[v]
        r.readers[v] = t.out_first[v + 1] - t.out_first[v]
        if r.waiting[v] == 0:
            r.candidate[count] = v
            count += 1
    highest = -np.inf
    for v in range(len(r.home)):
        highest = max(highest, s.select[v])
    _weigh_ops(s, rules, r, highest)
    r.taken[:] = 0.0
    return count


@inlined
def _weigh_ops(s: Scores, rules: Records, r: Room, unit: float) -> None:
    """Set the weights by which ops are drawn, 1 for a score of ``unit``."""
    for v in range(len(r.home)):
        r.weight[v] = np.exp((s.select[v] - unit) / rules[0].heat)


@inlined
def _weigh_candidates(s: Scores, rules: Records, r: Room, count: int) -> float:
    """The sum of the candidates' weights, which get another unit where the sum is too small or too large for it."""
    total, highest = 0.0, -np.inf
    for i in range(count):
        total += r.weight[r.candidate[i]]
    if total < LEAST or total == np.inf:
        for i in range(count):
            highest = max(highest, s.select[r.candidate[i]])
        _weigh_ops(s, rules, r, highest)
        total = 0.0
        for i in range(count):
            total += r.weight[r.candidate[i]]
    return total


@inlined
def _select(s: Scores, rules: Records, r: Room, found: Episodes, b: int, step: int, count: int) -> int:
    """Take an op from the candidates; its log-probability is recorded."""
    total, at, share = _weigh_candidates(s, rules, r, count), 0, rules[0].epsilon_select
    if rules[0].is_forced:
        while r.candidate[at] != found.order[b, step]:
            at += 1
    elif share > 0.0 and uniform(r.random) < share:
        at = min(int(uniform(r.random) * count), count - 1)
    elif rules[0].is_greedy_select:
        num_best = 0
        for i in range(count):
            score = s.select[r.candidate[i]]
            if num_best == 0 or score > s.select[r.candidate[at]]:
                at, num_best = i, 1
            elif score == s.select[r.candidate[at]]:
                num_best += 1
                if uniform(r.random) * num_best < 1.0:
                    at = i
    else:
        left = uniform(r.random) * total
        for i in range(count):
            at = i
            left -= r.weight[r.candidate[i]]
            if left < 0.0:
                break
    v: int = r.candidate[at]
    found.log_p[b, step, 0] = np.log((1.0 - share) * r.weight[v] / total + share / count)
    found.order[b, step] = v
    r.candidate[at] = r.candidate[count - 1]
    return v


@inlined
def _look(t: Tables, r: Room, v: int) -> None:
    """Gather what the devices hold of v's inputs, and when these would be there."""
    for d in range(len(r.devices)):
        r.devices[d].ready_s = 0.0
        r.devices[d].sent_s = 0.0
        r.devices[d].input_bytes = 0.0
        r.devices[d].began_s = np.inf
        r.devices[d].ended_s = 0.0
        r.devices[d].made_s = 0.0
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        home, start_s, end_s = r.home[u], r.of_op[u, 0], r.of_op[u, 1]
        for d in range(len(r.devices)):
            link_s = t.latency_s[home, d] + t.in_bytes[k] / t.bandwidth_bytes_per_s[home, d]
            r.devices[d].ready_s = max(r.devices[d].ready_s, end_s + link_s)
            r.devices[d].sent_s += link_s
        r.devices[home].input_bytes += t.in_bytes[k]
        r.devices[home].began_s = min(r.devices[home].began_s, start_s)
        r.devices[home].ended_s = max(r.devices[home].ended_s, end_s)
        r.devices[home].made_s += end_s - start_s


@inlined
def _permit(t: Tables, r: Room, v: int, able: BoolArray) -> None:
    """Mark the devices that support v and have room for it; where none has, the one that v would overfill least."""
    roomiest, least, num_able = -1, np.inf, 0
    for d in range(len(r.devices)):
        r.devices[d].is_able = 0
        if t.time_s[v, d] < np.inf:
            share = _share_of_memory(t, r, v, d)
            if share < least:
                roomiest, least = d, share
            if share <= 1.0:
                r.devices[d].is_able = 1
                num_able += 1
    if num_able == 0:
        r.devices[roomiest].is_able = 1
    for d in range(len(r.devices)):
        able[d] = r.devices[d].is_able == 1


@inlined
def _share_of_memory(t: Tables, r: Room, v: int, d: int) -> float:
    """What device d would hold with v and its inputs, in shares of its memory."""
    received = -r.devices[d].input_bytes
    for k in range(t.in_first[v], t.in_first[v + 1]):
        received += t.in_bytes[k]
    held = r.devices[d].held_bytes + received + t.weight_bytes[v] + t.output_bytes[v]
    share: float = held / max(t.memory_bytes[d], 1.0)
    return share


@inlined
def _describe(t: Tables, rules: Records, r: Room, v: int, x: Float32Array) -> None:
    """Fill the features ``x`` [D, F] of the devices for op v."""
    length_s, mean_s = rules[0].length_s, rules[0].mean_s
    first_s, first_end_s, first_free_s, least_s, input_bytes = np.inf, np.inf, np.inf, np.inf, 0.0
    for d in range(len(r.devices)):
        device, time_s = r.devices[d], t.time_s[v, d]
        start_s = max(device.free_s, device.ready_s)
        first_free_s = min(first_free_s, device.free_s)
        input_bytes += device.input_bytes
        if time_s < np.inf:
            first_s, first_end_s = min(first_s, start_s), min(first_end_s, start_s + time_s)
            least_s = min(least_s, time_s)
    for d in range(len(r.devices)):
        device, time_s = r.devices[d], min(t.time_s[v, d], MOST * (least_s + mean_s))
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
            x[d, 8] = device.input_bytes / input_bytes if input_bytes > 0.0 else 0.0
            x[d, 9] = min((device.free_s - first_free_s) / mean_s, MOST)
            x[d, 10] = min(_share_of_memory(t, r, v, d), MOST)
            x[d, 11] = max(min((device.ready_s - device.free_s) / mean_s, MOST), -MOST)
            x[d, 12] = min(device.sent_s / mean_s, MOST)


@inlined
def _place(t: Tables, s: Scores, rules: Records, r: Room, v: int, found: Episodes, b: int, step: int) -> int:
    """Choose the device of v among those that support it; its log-probability is recorded."""
    num_able = _weigh(t, s, rules, r, v, found.features[b, step])
    total, share = 0.0, rules[0].epsilon_place
    for d in range(len(r.devices)):
        total += r.devices[d].weight
    home: int = found.home[b, step]
    if not rules[0].is_forced:
        is_uniform = share > 0.0 and uniform(r.random) < share
        left = uniform(r.random) * (num_able if is_uniform else total)
        for d in range(len(r.devices)):
            if r.devices[d].is_able and (is_uniform or r.devices[d].weight > 0.0):
                home = d
                left -= 1.0 if is_uniform else r.devices[d].weight
                if left < 0.0:
                    break
    p = r.devices[home].weight / total if total > 0.0 else 0.0
    found.log_p[b, step, 1] = np.log((1.0 - share) * p + share / num_able)
    found.home[b, step] = home
    return home


@inlined
def _weigh(t: Tables, s: Scores, rules: Records, r: Room, v: int, x: Float32Array) -> int:
    """Set the weights by which the device of v is drawn; the number of devices that support v."""
    num_able, highest, least_s = 0, -np.inf, np.inf
    for d in range(len(r.devices)):
        r.devices[d].weight = 0.0
        if r.devices[d].is_able:
            num_able += 1
            if rules[0].is_listed:
                r.devices[d].logit = -max(r.devices[d].free_s, r.devices[d].ready_s)
            else:
                r.devices[d].logit = _logit(s, rules, r, v, d, x[d])
            if r.devices[d].logit > highest:
                highest, least_s = r.devices[d].logit, np.inf
            if r.devices[d].logit == highest and rules[0].is_listed:  # of equal starts the first end
                least_s = min(least_s, t.time_s[v, d])
    for d in range(len(r.devices)):
        if r.devices[d].is_able:
            if rules[0].is_listed or rules[0].is_greedy_place:
                is_best = r.devices[d].logit == highest and t.time_s[v, d] <= least_s
                r.devices[d].weight = 1.0 if is_best else 0.0
            else:
                r.devices[d].weight = np.exp((r.devices[d].logit - highest) / rules[0].heat)
    return num_able


@inlined
def _logit(s: Scores, rules: Records, r: Room, v: int, d: int, x: Float32Array) -> float:
    """LeakyReLU of the sum of all contributions, times the last layer (eq. 6 and 7)."""
    scale = 1.0
    if rules[0].is_mean:
        scale = 1.0 / max(r.devices[d].count, 1)
    for k in range(len(r.total)):
        r.total[k] = s.node[v, k] + r.taken[d, k] * np.float32(scale)
    for h in range(len(r.hidden)):
        r.hidden[h] = s.inner_bias[h]
    for f in range(len(x)):
        for h in range(len(r.hidden)):
            r.hidden[h] += x[f] * s.inner[f, h]
    for h in range(len(r.hidden)):
        value = r.hidden[h]
        if value > 0.0:
            for k in range(len(r.total)):
                r.total[k] += value * s.outer[h, k]
    logit = np.float64(s.own[v, d])
    for k in range(len(r.total)):
        value = r.total[k]
        logit += s.out[k] * (value if value > 0.0 else np.float32(SLOPE) * value)
    for f in range(len(x)):
        logit += s.direct[f] * x[f]
    return logit


@inlined
def _settle(t: Tables, s: Scores, r: Room, v: int, home: int, op_overhead_s: float) -> None:
    """v runs on its device behind all that is there."""
    start_s = max(r.devices[home].free_s, r.devices[home].ready_s)
    r.home[v], r.of_op[v, 0], r.of_op[v, 1] = home, start_s, start_s + t.time_s[v, home]
    r.devices[home].free_s = start_s + t.time_s[v, home] + op_overhead_s
    r.devices[home].work_s += t.time_s[v, home]
    r.devices[home].held_bytes += t.weight_bytes[v] + t.output_bytes[v]
    r.devices[home].count += 1
    for k in range(len(r.total)):
        r.taken[home, k] += s.seen[v, k]
    if r.readers[v] == 0:
        r.devices[home].held_bytes -= t.output_bytes[v]
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        r.readers[u] -= 1
        if r.readers[u] == 0:
            r.devices[r.home[u]].held_bytes -= t.output_bytes[u]


@inlined
def uniform(random: NDArray[np.uint64]) -> float:
    """A number in [0, 1) by SplitMix64 (Steele, Lea and Flood 2014), whose state is ``random`` [1]."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    number: float = np.float64(z) * 2.0**-53
    return number


@dataclass(frozen=True)
class Rules:
    """How to draw. ``exploration`` is the share of uniform decisions, ``heat`` the temperature of the others.

    ``by_path`` selects the largest score always (CRITICAL PATH where scores are b-levels), ``by_start`` places where
    an op starts first; ``is_greedy`` takes the largest score and logit, ties at random.
    """

    exploration: float = 0.0
    heat: float = 1.0
    is_greedy: bool = False
    by_path: bool = False
    by_start: bool = False
    mean_of_seen: bool = False

    def record(self, tables: Tables, is_forced: bool) -> Records:
        """The rules as the kernel reads them."""
        length_s, mean_s = lengths_of(tables)
        rules = np.zeros(1, RULES)
        rules["epsilon_select"] = 0.0 if self.by_path else self.exploration
        rules["epsilon_place"] = 0.0 if self.by_start else self.exploration
        rules["is_greedy_select"], rules["is_greedy_place"] = self.is_greedy or self.by_path, self.is_greedy
        rules["is_listed"], rules["is_forced"], rules["is_mean"] = self.by_start, is_forced, self.mean_of_seen
        rules["heat"], rules["length_s"], rules["mean_s"] = self.heat, length_s, mean_s
        rules["op_overhead_s"] = tables.op_overhead_s
        return rules


def decode(
    tables: Tables,
    scores: Scores,
    rules: Rules,
    seeds: NDArray[np.uint64],
    forced: tuple[IntArray, IntArray] | None = None,
) -> Episodes:
    """[B] episodes, one for each seed, on all cores the process may use; the same seed gives the same episode.

    ``forced`` are the ops [B, N] and devices [B, N] of every step, to record what led to them.
    """
    (n, d), num, record = tables.time_s.shape, len(seeds), rules.record(tables, forced is not None)
    order, home = forced or (np.zeros((num, n)), np.zeros((num, n)))
    found = Episodes(
        order=order.astype(np.int64),
        home=home.astype(np.int64),
        ready=np.tile(np.where(np.diff(tables.in_first) == 0, 0, n), (num, 1)),
        log_p=np.zeros((num, n, 2)),
        features=np.zeros((num, n, d, len(scores.inner)), np.float32),
        able=np.zeros((num, n, d), np.bool_),
    )

    def run(part: slice) -> None:
        some = Episodes._make(column[part] for column in found)
        decode_many(tables, scores, record, _room(tables, scores), seeds[part], some)

    in_parts(run, len(seeds), min(usable_cpus(), len(seeds) // 4))
    return found


def _room(tables: Tables, scores: Scores) -> Room:
    (n, d), k = tables.time_s.shape, len(scores.out)
    return Room(
        of_op=np.zeros((n, 2)),
        home=np.zeros(n, np.int64),
        weight=np.zeros(n),
        candidate=np.zeros(n, np.int64),
        waiting=np.zeros(n, np.int64),
        readers=np.zeros(n, np.int64),
        devices=np.zeros(d, ROOM),
        taken=np.zeros((d, k), np.float32),
        hidden=np.zeros(len(scores.inner_bias), np.float32),
        total=np.zeros(k, np.float32),
        random=np.zeros(1, np.uint64),
    )
