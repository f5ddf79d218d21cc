"""Sequential decoding: select an op, place it, and repeat, from tables that one pass of the networks computed.

If message passing runs once per episode (DOPPLER §4.3), only the set of ops placed so far changes within an episode. A
compiled loop over tables decodes an episode of a few hundred ops in about a millisecond. Its records suffice to compute
all log-probabilities again in one batched pass.

Legend: B episodes, N ops, D devices, F features of a device, H and K hidden widths, R rows of weights of devices.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.base.kernels import bare, inlined
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.methods.learned.policy import MOST_CHANGE, RATIO_LIMIT
from hsdag.methods.lists.schedule import (
    ListState,
    Outlook,
    assign_and_free,
    look,
    offer,
    permit,
    send,
    way_by_consumers,
)
from hsdag.runtime.machine.usable import in_parts, usable_cpus
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import Tables, lengths_of
from hsdag.runtime.simulator.simulation import simulate

Float32Array = NDArray[np.float32]
A = TypeVar("A", torch.Tensor, Float32Array)


class Scores(NamedTuple, Generic[A]):
    """Tables that networks compute for a problem.

    The logit of a device with features x for an op is bias + direct . x + out . leaky(node + sum of seen over the
    device's ops + outer . relu(inner . x + inner_bias)).
    """

    select: A  # [N] logits of the selection of ops
    node: A  # [N, K] contribution of an op to the logits of all devices for it
    seen: A  # [N, K] contribution of an op to the logit of its device for later ops
    inner: A  # [F, H] weights of the first layer on the features of a device
    inner_bias: A  # [H] its bias
    outer: A  # [H, K] weights of the second layer
    out: A  # [K] weights of the output
    direct: A  # [R, F] linear weights of the features of a device
    bias: A  # [R, D] bias of a device

    @classmethod
    def linear(cls, select: A, direct: A, bias: A) -> Scores[A]:
        """Return tables for which the logits of devices are linear in their features: K and H are 0."""
        rows, columns = select[:, None][:, :0], direct.T[:, :0]  # [N, 0] and [F, 0]
        return cls(select, rows, rows, columns, columns[0], columns[:0], columns[0], direct, bias)


class Sharing(NamedTuple):
    """Groups of ops that share a device, and the rows of ``direct`` and ``bias`` in ``Scores`` that ops have."""

    row: IntArray  # [B, N]
    group: IntArray  # [B, N] 0 to N - 1; if the device of a group is full, the rest of the group is placed elsewhere


class Rules(NamedTuple):
    """Distributions that ops and devices are drawn from.

    Each is a mixture of the uniform distribution, of weight ``share``, and the softmax of logits divided by the
    temperature ``heat``.
    """

    heat: tuple[float, float] = (1.0, 1.0)  # of selection and of placement
    share: tuple[float, float] = (0.0, 0.0)  # of selection and of placement
    is_mean: bool = False  # average ``seen`` over the ops of a device instead of summing it


class Episodes(NamedTuple):
    """Decisions of episodes, and what each was based on."""

    order: IntArray  # [B, N] op selected at every step
    home: IntArray  # [B, N] device of every step's op
    ready: IntArray  # [B, N] first step at which an op was a candidate, by op
    log_p: FloatArray  # [B, N, 2] log-probabilities of op and device in the distributions they were drawn from
    features: Float32Array  # [B, N, D, F] features of devices, by step
    able: BoolArray  # [B, N, D] whether the op could be placed on a device; False if its group was placed before


PAPER_FEATURES = 5
"""Number of DOPPLER's features of a device (App. E.2), the first ones of ``FEATURES``."""
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
    "way to the end by the op's consumers, longer than by the best device",
    "share of the consumers' other inputs that is on the device",
)
"""Dynamic features of a device for the op that is being placed. The first five are DOPPLER's (App. E.2), in units of
the length of a balanced schedule; times among the others are in units of the mean time of an op and cut at ``MOST``."""
START = FEATURES.index("earliest start of the op")
START_LATER = FEATURES.index("start, later than on the best device")
END_LATER = FEATURES.index("end, later than on the best device")
"""Indices of three of these features."""
MOST = 10.0
"""Clip features that are not DOPPLER's to plus or minus this value."""
SLOPE = 0.01
"""Slope of LeakyReLU below zero (DOPPLER, eq. 7)."""
SEEN_PACE, OWN_PACE, OWN_RANGE = 100.0, 30.0, 8.0
"""Factors by which the parameters behind the weights of these features, and behind scores of single units, are
multiplied, so that a few updates suffice to learn them; the bound on the absolute value of these scores."""
LEAST = 1e-200
"""Compute the weights of candidates anew if their sum is smaller, since they may have lost digits."""


class Decoder(NamedTuple):
    """Inputs of the compiled loop, and its buffers for one episode."""

    t: Tables
    rules: Rules
    length_s: float  # length of a balanced schedule
    mean_s: float  # mean time of an op
    chance: FloatArray  # [N] weight of a candidate in the draw
    num_placed: IntArray  # [D] number of ops on a device
    began_s: FloatArray  # [D] earliest start of a producer of the current op on a device
    ended_s: FloatArray  # [D] latest end of such a producer
    made_s: FloatArray  # [D] total time of such producers
    logit: FloatArray  # [D] logit of a device
    weight: FloatArray  # [D] weight of a device in the draw
    taken: Float32Array  # [D, K] sum of ``seen`` over the ops on a device
    hidden: Float32Array  # [H] hidden layer of a device
    total: Float32Array  # [K] sum of all contributions to the logit of a device
    home: IntArray  # [N] device of a group, -1 before its first op is placed
    tail_s: FloatArray  # [N, D] least time, with transfers, from the end of an op on a device to the end of all
    ahead_s: FloatArray  # [D] estimated end of the schedule through the consumers of the current op
    near: FloatArray  # [D] share of the other inputs of its consumers that is on the device
    s: Scores[Float32Array]
    state: ListState
    w: Outlook

    @staticmethod
    def of(tables: Tables, tail_s: FloatArray, scores: Scores[Float32Array], rules: Rules) -> Decoder:
        """Return a decoder with empty buffers; ``tail_s`` [N, D] is that of ``tails_of``."""
        n, d = tables.time_s.shape
        return Decoder(
            tables,
            rules,
            *lengths_of(tables),
            chance=np.zeros(n),
            num_placed=np.zeros(d, np.int64),
            began_s=np.zeros(d),
            ended_s=np.zeros(d),
            made_s=np.zeros(d),
            logit=np.zeros(d),
            weight=np.zeros(d),
            taken=np.zeros((d, len(scores.out)), np.float32),
            hidden=np.zeros(scores.inner.shape[1], np.float32),
            total=np.zeros(len(scores.out), np.float32),
            home=np.zeros(n, np.int64),
            tail_s=tail_s,
            ahead_s=np.zeros(d),
            near=np.zeros(d),
            s=scores,
            state=ListState.of(tables),
            w=Outlook.of(tables),
        )


@bare
def decode_many(c: Decoder, random: FloatArray, episodes: Episodes, shared: Sharing) -> None:
    """Decode B episodes into ``episodes``.

    Args:
        c: Inputs and buffers, which every episode overwrites.
        random: Numbers in [0, 1) by which to draw ops and devices; negative: take those in ``episodes`` [B, N, 2].
        episodes: Arrays that records are written to.
        shared: Groups of ops that share a device.
    """
    for b in range(len(random)):
        unit = 0.0
        count = _begin(c)
        for step in range(len(c.chance)):
            unit, total = _weigh_candidates(c, unit, count)
            v = _select(c, episodes, b, step, count, total, random[b, step, 0])
            count -= 1
            look_around(c, v)
            home = c.home[shared.group[b, v]]
            if home < 0 or c.w.memory[home] > 1.0:
                permit(c.t, c.w, v, 1.0, episodes.able[b, step])
                describe(c, v, episodes.features[b, step])
                home = choose_device(c, v, shared.row[b, v], episodes, b, step, random[b, step, 1])
                c.home[shared.group[b, v]] = home
            episodes.home[b, step] = home
            assign_and_free(c.t, c.state, c.w, v, home, max(c.state.free_s[home], c.w.ready_s[v, home]))
            c.num_placed[home] += 1
            send(c.t, c.state, c.w, v, home)
            for k in range(len(c.total)):
                c.taken[home, k] += c.s.seen[v, k]
            before, count = count, offer(c.t, c.state, c.w, v, count)
            for i in range(before, count):
                episodes.ready[b, c.w.candidate[i]] = step + 1
                _rate(c, unit, c.w.candidate[i])


@inlined
def _begin(c: Decoder) -> int:
    """Clear the buffers and make ops without inputs the candidates; return their number."""
    c.taken[:] = 0.0
    c.home[:] = -1
    c.state.device[:] = -1
    c.state.free_s[:] = c.state.held_bytes[:] = c.w.work_s[:] = 0.0
    c.w.ready_s[:] = 0.0
    c.num_placed[:] = count = 0
    for v in range(len(c.chance)):
        c.state.waiting[v] = c.t.in_first[v + 1] - c.t.in_first[v]
        c.w.readers[v] = c.t.out_first[v + 1] - c.t.out_first[v]
        if c.state.waiting[v] == 0:
            c.w.candidate[count] = v
            _rate(c, 0.0, v)
            count += 1
    return count


@inlined
def _rate(c: Decoder, unit: float, v: int) -> None:
    """Set the weight of candidate v in the draw; a score of ``unit`` has weight 1."""
    c.chance[v] = np.exp((c.s.select[v] - unit) / c.rules.heat[0])


@inlined
def _weigh_candidates(c: Decoder, unit: float, count: int) -> tuple[float, float]:
    """Return the score that has weight 1, and the sum of the weights of all candidates.

    That score is ``unit``, unless the sum would be too small or too large for the number format; then it is the highest
    score of a candidate, and all weights are computed anew.
    """
    total = 0.0
    for i in range(count):
        total += c.chance[c.w.candidate[i]]
    if not LEAST <= total < np.inf:
        unit, total = -np.inf, 0.0
        for i in range(count):
            unit = max(unit, c.s.select[c.w.candidate[i]])
        for i in range(count):
            _rate(c, unit, c.w.candidate[i])
            total += c.chance[c.w.candidate[i]]
    return unit, total


@inlined
def _select(c: Decoder, episodes: Episodes, b: int, step: int, count: int, total: float, random: float) -> int:
    """Select one of the candidates, remove it from them, and record it with its log-probability.

    Args:
        b: Episode.
        count: Number of candidates.
        total: Sum of their weights.
        random: Number in [0, 1) by which to draw; if it is negative, the op in ``episodes`` is selected.
    """
    at = -1
    scale, share = (1.0 - c.rules.share[0]) / total, c.rules.share[0] / count
    left = random
    while left >= 0.0 and at + 1 < count:
        at += 1
        left -= scale * c.chance[c.w.candidate[at]] + share
    if random < 0.0:
        at = 0
        while c.w.candidate[at] != episodes.order[b, step]:
            at += 1
    v: int = c.w.candidate[at]
    episodes.log_p[b, step, 0] = np.log(scale * c.chance[v] + share)
    episodes.order[b, step] = v
    c.w.candidate[at] = c.w.candidate[count - 1]
    return v


@inlined
def look_around(c: Decoder, v: int) -> None:
    """Compute, for each device, the state of v's inputs and of the memory, and the times at which v's producers ran."""
    look(c.t, c.state, c.w, v)
    c.began_s[:] = np.inf
    c.ended_s[:] = c.made_s[:] = 0.0
    for k in range(c.t.in_first[v], c.t.in_first[v + 1]):
        u = c.t.in_op[k]
        home, start_s, end_s = c.state.device[u], c.state.start_s[u], c.state.end_s[u]
        c.began_s[home] = min(c.began_s[home], start_s)
        c.ended_s[home] = max(c.ended_s[home], end_s)
        c.made_s[home] += end_s - start_s


@inlined
def look_ahead(c: Decoder, v: int) -> None:
    """Compute, for each device, the end of the schedule through v's consumers, and the share of their other inputs."""
    for d in range(len(c.ahead_s)):
        end_s = max(c.state.free_s[d], c.w.ready_s[v, d]) + c.t.time_s[v, d]
        c.ahead_s[d] = way_by_consumers(c.t, c.tail_s, c.state, c.w, v, d, end_s)
    c.near[:] = total = 0.0
    for k in range(c.t.out_first[v], c.t.out_first[v + 1]):
        u = c.t.out_op[k]
        for i in range(c.t.in_first[u], c.t.in_first[u + 1]):
            home = c.state.device[c.t.in_op[i]]
            if home >= 0:
                c.near[home] += c.t.in_bytes[i]
                total += c.t.in_bytes[i]
    for d in range(len(c.near)):
        c.near[d] = c.near[d] / total if total > 0.0 else 0.0


@inlined
def describe(c: Decoder, v: int, x: Float32Array) -> None:
    """Write the features of the devices for op v, in the order of ``FEATURES``, into ``x`` [D, F]."""
    length_s, mean_s, state, w = c.length_s, c.mean_s, c.state, c.w
    look_ahead(c, v)
    first_s, first_end_s, first_free_s, least_s, first_ahead_s = np.inf, np.inf, np.inf, np.inf, np.inf
    for d in range(len(x)):
        time_s, start_s = c.t.time_s[v, d], max(state.free_s[d], w.ready_s[v, d])
        first_free_s = min(first_free_s, state.free_s[d])
        if time_s < np.inf:
            first_s, first_end_s = min(first_s, start_s), min(first_end_s, start_s + time_s)
            least_s = min(least_s, time_s)
            first_ahead_s = min(first_ahead_s, c.ahead_s[d])
    for d in range(len(x)):
        time_s = min(c.t.time_s[v, d], MOST * (least_s + mean_s))
        start_s = max(state.free_s[d], w.ready_s[v, d])
        x[d, 0] = w.work_s[d] / length_s
        x[d, 1] = c.made_s[d] / length_s
        x[d, 2] = c.began_s[d] / length_s if c.began_s[d] < np.inf else 0.0
        x[d, 3] = c.ended_s[d] / length_s
        x[d, 4] = start_s / length_s
        if x.shape[1] > PAPER_FEATURES:
            x[d, 5] = min((start_s - first_s) / mean_s, MOST)
            x[d, 6] = min((start_s + time_s - first_end_s) / mean_s, MOST)
            x[d, 7] = min((time_s - least_s) / mean_s, MOST)
            x[d, 8] = w.input_share[d]
            x[d, 9] = min((state.free_s[d] - first_free_s) / mean_s, MOST)
            x[d, 10] = min(w.memory[d], MOST)
            x[d, 11] = max(min((w.ready_s[v, d] - state.free_s[d]) / mean_s, MOST), -MOST)
            x[d, 12] = min(w.sent_s[d] / mean_s, MOST)
            x[d, 13] = min((c.ahead_s[d] - first_ahead_s) / mean_s, MOST)
            x[d, 14] = c.near[d]


@inlined
def choose_device(c: Decoder, v: int, row: int, episodes: Episodes, b: int, step: int, random: float) -> int:
    """Return the device chosen for op v, and record its log-probability.

    Args:
        row: Row of ``direct`` and ``bias`` in the scores.
        episodes: Records, which contain the devices that can be chosen and their features.
        b: Episode.
        random: Number in [0, 1) by which to draw; if it is negative, the device in ``episodes`` is chosen.
    """
    able, x = episodes.able[b, step], episodes.features[b, step]
    num_able, total, highest = 0, 0.0, -np.inf
    left = random
    for d in range(len(able)):
        if able[d]:
            num_able += 1
            c.logit[d] = _logit(c, v, row, d, x[d])
            highest = max(highest, c.logit[d])
    for d in range(len(able)):
        c.weight[d] = np.exp((c.logit[d] - highest) / c.rules.heat[1]) if able[d] else 0.0
        total += c.weight[d]
    scale, share = (1.0 - c.rules.share[1]) / total, c.rules.share[1] / num_able
    home: int = episodes.home[b, step]
    for d in range(len(able)):
        p = scale * c.weight[d] + share
        if able[d] and p > 0.0 and left >= 0.0:
            home = d
            left -= p
    episodes.log_p[b, step, 1] = np.log(scale * c.weight[home] + share)
    return home


@inlined
def _logit(c: Decoder, v: int, row: int, d: int, x: Float32Array) -> float:
    """Return the logit of device d for op v, by the formula in ``Scores`` (DOPPLER, eq. 6 and 7).

    Args:
        row: Row of ``direct`` and ``bias`` in the scores.
        x: Features of the device [F].
    """
    s = c.s
    scale = np.float32(1.0 / max(c.num_placed[d], 1) if c.rules.is_mean else 1.0)
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
    logit = np.float64(s.bias[row, d])
    for k in range(len(c.total)):
        logit += s.out[k] * (c.total[k] if c.total[k] > 0.0 else np.float32(SLOPE) * c.total[k])
    for f in range(len(x)):
        logit += s.direct[row, f] * x[f]
    return logit


def order_of(costs: ScheduleProblem, plan: Plan) -> IntArray:
    """Return the ops [N] in the order in which they start in a plan, which is topological."""
    run = simulate(costs, plan.placement, priority=plan.priority)
    return np.lexsort((inverse_of(costs.topological_order), run.start_s))


def decode(
    tables: Tables,
    tail_s: FloatArray,
    scores: Scores[Float32Array],
    rules: Rules,
    random: FloatArray,
    forced: tuple[IntArray, IntArray] | None = None,
    shared: Sharing | None = None,
) -> Episodes:
    """Return B decoded episodes, computed on all cores that the process may use.

    Args:
        tables: Costs of the problem.
        tail_s: Least time from the end of an op on a device to the end of all ops, as of ``tails_of`` [N, D].
        scores: Tables that the networks computed.
        rules: Distributions that decisions are drawn from.
        random: Numbers in [0, 1) by which ops and devices are drawn [B, N, 2].
        forced: Ops [B, N] and devices [B, N] of every step, to be recorded instead of drawn ones.
        shared: Groups of ops that share a device; by default, each op is placed by itself.
    """
    n, d = tables.time_s.shape
    num = len(random)
    num_features = len(scores.inner)
    order, home = forced or (np.zeros((num, n)), np.zeros((num, n)))
    numbers = random if forced is None else np.full(random.shape, -1.0)
    alike = shared or Sharing(*(np.broadcast_to(np.arange(n), (num, n)).copy() for _ in range(2)))
    episodes = Episodes(
        order=order.astype(np.int64),
        home=home.astype(np.int64),
        ready=np.tile(np.where(np.diff(tables.in_first) == 0, 0, n), (num, 1)),
        log_p=np.zeros((num, n, 2)),
        features=np.zeros((num, n, d, num_features), np.float32),
        able=np.zeros((num, n, d), np.bool_),
    )

    def run_part(part: slice) -> None:
        decoder = Decoder.of(tables, tail_s, scores, rules)
        records = Episodes._make(column[part] for column in episodes)
        decode_many(decoder, numbers[part], records, Sharing._make(column[part] for column in alike))

    in_parts(run_part, num, min(usable_cpus(), num // 4))
    return episodes


class Slopes(NamedTuple):
    """Gradient of weighted log-probabilities and entropies with respect to tables of ``Scores``."""

    select: FloatArray  # [N]
    bias: FloatArray  # [R, D]
    direct: FloatArray  # [R, F]


class Ascent(NamedTuple):
    """Parameters of the objective: weights of episodes and of the entropy, and the range of importance weights."""

    weight: FloatArray  # [B] weight of the log-probabilities of an episode's decisions
    entropy: float  # weight of the entropies
    clip: float  # importance weights are clipped to 1 plus or minus this; infinite: all are 1
    learns_order: bool  # whether the selection of ops is part of the objective


class Climber(NamedTuple):
    """Inputs of the compiled loop that adds up a gradient, the gradient, and the loop's buffers."""

    s: Scores[Float32Array]  # under the present weights
    a: Ascent
    episodes: Episodes
    row: IntArray  # [B, N] row of ``direct`` and ``bias`` that an op has
    slopes: Slopes
    p: FloatArray  # [D] logit, then log-probability, of a device
    chance: FloatArray  # [N] exp(score - highest score) of an op
    waiting: IntArray  # [N] first op that becomes a candidate at a step, -1 if there is none
    following: IntArray  # [N] next op that becomes a candidate at the same step as an op, -1 if there is none
    candidate: IntArray  # [N] candidates of a step


@bare
def climb_many(c: Climber) -> None:
    """Add the gradient of the objective over all episodes to ``c.slopes``."""
    most = -np.inf
    for v in range(len(c.chance)):
        most = max(most, c.s.select[v])
    for v in range(len(c.chance)):
        c.chance[v] = np.exp(c.s.select[v] - most)
    for b in range(len(c.a.weight)):
        if c.a.learns_order:
            _climb_order(c, b, most)
        for step in range(len(c.chance)):
            if c.episodes.able[b, step].any():
                _climb_device(c, b, step)


@inlined
def _climb_order(c: Climber, b: int, most: float) -> None:
    """Add the gradient of the selection of all ops of episode b; ``most`` is the highest score of any op."""
    s, a, episodes, chance = c.s, c.a, c.episodes, c.chance
    waiting, following, candidate = c.waiting, c.following, c.candidate
    num, count = len(chance), 0
    waiting[:] = -1
    for v in range(num):  # build a linked list for every step of the ops that become candidates then
        following[v] = waiting[episodes.ready[b, v]]
        waiting[episodes.ready[b, v]] = v
    for step in range(num):
        u = waiting[step]
        while u >= 0:
            candidate[count] = u
            count += 1
            u = following[u]
        total, lost = 0.0, 0.0
        for i in range(count):
            total += chance[candidate[i]]
            lost += chance[candidate[i]] * (s.select[candidate[i]] - most)
        v, log_total = episodes.order[b, step], np.log(total)
        weight = _pulled(a, b, s.select[v] - most - log_total, episodes.log_p[b, step, 0])
        entropy = log_total - lost / total
        c.slopes.select[v] += weight
        at = 0
        for i in range(count):
            u = candidate[i]
            q = chance[u] / total
            c.slopes.select[u] -= q * (weight + a.entropy * (s.select[u] - most - log_total + entropy))
            if u == v:
                at = i
        count -= 1
        candidate[at] = candidate[count]


@inlined
def _climb_device(c: Climber, b: int, step: int) -> None:
    """Add the gradient of the choice of a device at one step of episode b."""
    s, a, episodes, p = c.s, c.a, c.episodes, c.p
    able, x, home = episodes.able[b, step], episodes.features[b, step], episodes.home[b, step]
    row = c.row[b, episodes.order[b, step]]
    highest = -np.inf
    for d in range(len(p)):
        if able[d]:
            p[d] = s.bias[row, d]
            for f in range(x.shape[1]):
                p[d] += s.direct[row, f] * x[d, f]
            highest = max(highest, p[d])
    total = 0.0
    for d in range(len(p)):
        if able[d]:
            total += np.exp(p[d] - highest)
    entropy = 0.0
    for d in range(len(p)):
        if able[d]:
            p[d] -= highest + np.log(total)
            entropy -= np.exp(p[d]) * p[d]
    weight = _pulled(a, b, p[home], episodes.log_p[b, step, 1])
    for d in range(len(p)):
        if able[d]:
            q = np.exp(p[d])
            slope = weight * ((d == home) - q) - a.entropy * q * (p[d] + entropy)
            c.slopes.bias[row, d] += slope
            for f in range(x.shape[1]):
                c.slopes.direct[row, f] += slope * x[d, f]


@inlined
def _pulled(a: Ascent, b: int, log_p: float, drawn: float) -> float:
    """Return the factor of the gradient of a decision's log-probability.

    It is the weight of the episode times the importance weight of the decision, and 0 where that is clipped.

    Args:
        log_p: Log-probability under the present weights.
        drawn: Log-probability in the distribution that the decision was drawn from.
    """
    weight: float = a.weight[b]
    if a.clip < np.inf:
        ratio = np.exp(min(max(log_p - drawn, -MOST_CHANGE), MOST_CHANGE))
        is_beyond = ratio > 1.0 + a.clip if weight > 0.0 else ratio < 1.0 - a.clip or ratio > RATIO_LIMIT
        weight = 0.0 if is_beyond or abs(log_p - drawn) > MOST_CHANGE else weight * ratio
    return weight


def climb(scores: Scores[Float32Array], ascent: Ascent, episodes: Episodes, row: IntArray) -> Slopes:
    """Return the gradient of the objective over B episodes.

    Args:
        scores: Tables under the present weights.
        ascent: Parameters of the objective.
        episodes: Recorded decisions.
        row: Rows of ``direct`` and ``bias`` that the ops have [B, N].
    """
    n, d = len(scores.select), scores.bias.shape[1]
    slopes = Slopes(np.zeros(n), np.zeros(scores.bias.shape), np.zeros(scores.direct.shape))
    integers = (np.zeros(n, np.int64) for _ in range(3))
    climb_many(Climber(scores, ascent, episodes, row, slopes, np.zeros(d), np.zeros(n), *integers))
    return slopes
