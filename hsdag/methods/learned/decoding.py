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
    """What the networks say of a problem; a device's logit is out . leaky(node + seen of its ops + features)."""

    select: A  # [N] logits of selection
    node: A  # [N, K] what an op contributes to the logit of every device
    seen: A  # [N, K] what an op contributes to its device once it is placed
    inner: A  # [F, H] first layer on the features of a device
    inner_bias: A  # [H]
    outer: A  # [H, K]
    out: A  # [K]
    direct: A  # [R, F] what the features of a device add to its logit by themselves
    own: A  # [R, D] what is added to the logit of a device


class Sharing(NamedTuple):
    """Which ops share a device in each episode, and the row of ``Scores`` that each op has."""

    row: IntArray  # [B, N]
    group: IntArray  # [B, N] 0 to N - 1; where the device of a group is full, the rest of it goes elsewhere


class Rules(NamedTuple):
    """How ops are selected and placed: by a softmax of scores over a temperature ``heat``, a ``share`` uniformly."""

    heat: tuple[float, float] = (1.0, 1.0)  # of selection, of placement
    share: tuple[float, float] = (0.0, 0.0)
    is_mean: bool = False  # embeddings of the ops on a device count by their mean, not by their sum


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
    "way to the end by the op's consumers, longer than by the best device",
    "share of the consumers' other inputs that is on the device",
)
"""Dynamic features of a device for the op at hand. The first five are DOPPLER's (App. E.2), in units of the length of
a balanced schedule; lengths of the others are in units of the mean op, and cut at ``MOST``."""
START = FEATURES.index("earliest start of the op")
START_LATER = FEATURES.index("start, later than on the best device")
END_LATER = FEATURES.index("end, later than on the best device")
MOST = 10.0
SLOPE = 0.01
"""Of LeakyReLU below zero (eq. 7)."""
SEEN_PACE, OWN_PACE, OWN_RANGE = 100.0, 30.0, 8.0
"""By how much learned weights of these features, and learned scores of single units, grow where their parameters grow
by 1: a few updates are to be enough. How far the scores go."""
LEAST = 1e-200
"""Sum of the weights of candidates below which a weight may have lost digits."""


class Decoder(NamedTuple):
    """What the compiled loop reads, and what it writes for one episode."""

    t: Tables
    s: Scores[Float32Array]
    rules: Rules
    length_s: float  # of a balanced schedule
    mean_s: float  # of an op
    state: ListState
    w: Outlook
    chance: FloatArray  # [N] weight of a candidate in the draw
    num_placed: IntArray  # [D] ops on a device
    began_s: FloatArray  # [D] earliest start of a producer of the op at hand
    ended_s: FloatArray  # [D] latest end of one
    made_s: FloatArray  # [D] their work
    logit: FloatArray  # [D]
    weight: FloatArray  # [D] of a device in the draw
    taken: Float32Array  # [D, K] contributions of the ops on a device
    hidden: Float32Array  # [H]
    total: Float32Array  # [K]
    home: IntArray  # [N] of a group, -1 before its first op is placed
    tail_s: FloatArray  # [N, D] what comes at least behind an op on a device, transfers included
    ahead_s: FloatArray  # [D] the way to the end by the consumers of the op at hand
    near: FloatArray  # [D] share of what its consumers read otherwise that is on the device

    @staticmethod
    def of(tables: Tables, tail_s: FloatArray, scores: Scores[Float32Array], rules: Rules) -> Decoder:
        """Room for one episode."""
        n, d = tables.time_s.shape
        return Decoder(
            tables,
            scores,
            rules,
            *lengths_of(tables),
            state=ListState.of(tables),
            w=Outlook.of(tables),
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
        )


@bare
def decode_many(c: Decoder, random: FloatArray, is_forced: bool, found: Episodes, shared: Sharing) -> None:
    """Decode an episode for each row of ``random`` [B, N, 2], numbers in [0, 1), into ``found``.

    Where it ``is_forced``, the order and the devices are followed that are there.
    """
    for b in range(len(random)):
        unit = 0.0
        count = _begin(c)
        for step in range(len(c.chance)):
            unit, total = _weigh_candidates(c, unit, count)
            v = _select(c, found, b, step, count, total, -1.0 if is_forced else random[b, step, 0])
            count -= 1
            look_around(c, v)
            home = c.home[shared.group[b, v]]
            if home < 0 or c.w.memory[home] > 1.0:
                permit(c.t, c.w, v, 1.0, found.able[b, step])
                describe(c, v, found.features[b, step])
                home = place(c, v, shared.row[b, v], found, b, step, -1.0 if is_forced else random[b, step, 1])
                c.home[shared.group[b, v]] = home
            found.home[b, step] = home
            assign_and_free(c.t, c.state, c.w, v, home, max(c.state.free_s[home], c.w.ready_s[v, home]))
            c.num_placed[home] += 1
            send(c.t, c.state, c.w, v, home)
            for k in range(len(c.total)):
                c.taken[home, k] += c.s.seen[v, k]
            before, count = count, offer(c.t, c.state, c.w, v, count)
            for i in range(before, count):
                found.ready[b, c.w.candidate[i]] = step + 1
                _rate(c, unit, c.w.candidate[i])


@inlined
def _begin(c: Decoder) -> int:
    """Clear what an episode is decoded in; ops without inputs are the first candidates, which are counted."""
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
    """The weight of candidate v, 1 for a score of ``unit``."""
    c.chance[v] = np.exp((c.s.select[v] - unit) / c.rules.heat[0])


@inlined
def _weigh_candidates(c: Decoder, unit: float, count: int) -> tuple[float, float]:
    """The unit and the sum of the candidates' weights: another unit where the sum is too small or too large for it."""
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
def _select(c: Decoder, found: Episodes, b: int, step: int, count: int, total: float, random: float) -> int:
    """Select a candidate, the op that is there where ``random`` is negative; record its log-probability."""
    at = -1
    scale, share = (1.0 - c.rules.share[0]) / total, c.rules.share[0] / count
    left = random
    while left >= 0.0 and at + 1 < count:
        at += 1
        left -= scale * c.chance[c.w.candidate[at]] + share
    if random < 0.0:
        at = 0
        while c.w.candidate[at] != found.order[b, step]:
            at += 1
    v: int = c.w.candidate[at]
    found.log_p[b, step, 0] = np.log(scale * c.chance[v] + share)
    found.order[b, step] = v
    c.w.candidate[at] = c.w.candidate[count - 1]
    return v


@inlined
def look_around(c: Decoder, v: int) -> None:
    """Gather what devices hold of v's inputs and of their memory, and when the producers there ran."""
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
    """Gather what is best for v's consumers: how they would go on from every device, and where their inputs are."""
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
    """Fill the features ``x`` [D, F] of the devices for op v."""
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
def place(c: Decoder, v: int, row: int, found: Episodes, b: int, step: int, random: float) -> int:
    """Choose v's device, the one that is there where ``random`` is negative; record its log-probability."""
    able, x = found.able[b, step], found.features[b, step]
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
    home: int = found.home[b, step]
    for d in range(len(able)):
        p = scale * c.weight[d] + share
        if able[d] and p > 0.0 and left >= 0.0:
            home = d
            left -= p
    found.log_p[b, step, 1] = np.log(scale * c.weight[home] + share)
    return home


@inlined
def _logit(c: Decoder, v: int, row: int, d: int, x: Float32Array) -> float:
    """LeakyReLU of the sum of all contributions, times the last layer (eq. 6 and 7)."""
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
    logit = np.float64(s.own[row, d])
    for k in range(len(c.total)):
        logit += s.out[k] * (c.total[k] if c.total[k] > 0.0 else np.float32(SLOPE) * c.total[k])
    for f in range(len(x)):
        logit += s.direct[row, f] * x[f]
    return logit


def order_of(costs: ScheduleProblem, plan: Plan) -> IntArray:
    """[N] ops in the order in which they start in a plan, which is topological."""
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
    """[B] episodes on all cores the process may use, each by its numbers ``random`` [B, N, 2] in [0, 1).

    ``tail_s`` [N, D] are the tables' ``tails_of``, ``forced`` the ops [B, N] and devices [B, N] of every
    step, to record what led to them.
    """
    n, d = tables.time_s.shape
    num = len(random)
    num_features = len(scores.inner)
    order, home = forced or (np.zeros((num, n)), np.zeros((num, n)))
    alike = shared or Sharing(*(np.broadcast_to(np.arange(n), (num, n)).copy() for _ in range(2)))
    found = Episodes(
        order=order.astype(np.int64),
        home=home.astype(np.int64),
        ready=np.tile(np.where(np.diff(tables.in_first) == 0, 0, n), (num, 1)),
        log_p=np.zeros((num, n, 2)),
        features=np.zeros((num, n, d, num_features), np.float32),
        able=np.zeros((num, n, d), np.bool_),
    )

    def run_part(part: slice) -> None:
        decoder = Decoder.of(tables, tail_s, scores, rules)
        episodes = Episodes._make(column[part] for column in found)
        decode_many(decoder, random[part], forced is not None, episodes, Sharing._make(each[part] for each in alike))

    in_parts(run_part, num, min(usable_cpus(), num // 4))
    return found


class Slopes(NamedTuple):
    """The gradient of weighted log-probabilities and entropies with respect to the tables of ``Scores``."""

    select: FloatArray  # [N]
    own: FloatArray  # [R, D]
    direct: FloatArray  # [R, F]


class Ascent(NamedTuple):
    """What the gradient is taken of: weights of episodes and of entropy, and the range of importance weights."""

    weight: FloatArray  # [B] of the log-probabilities of all decisions of an episode
    entropy: float
    clip: float  # importance weights beyond 1 plus or minus this count no further; infinite where all are 1
    learns_order: bool


@bare
def climb_many(
    s: Scores[Float32Array],
    a: Ascent,
    found: Episodes,
    row: IntArray,
    slopes: Slopes,
    p: FloatArray,
    chance: FloatArray,
    waiting: IntArray,
    following: IntArray,
    candidate: IntArray,
) -> None:
    """Add the gradient of all episodes to ``slopes``; the rest is room: ``p`` [D], and [N] each."""
    most = -np.inf
    for v in range(len(chance)):
        most = max(most, s.select[v])
    for v in range(len(chance)):
        chance[v] = np.exp(s.select[v] - most)
    for b in range(len(a.weight)):
        if a.learns_order:
            _climb_order(s, a, found, b, most, slopes, chance, waiting, following, candidate)
        for step in range(len(chance)):
            if found.able[b, step].any():
                _climb_device(s, a, found, b, step, row[b, found.order[b, step]], slopes, p)


@inlined
def _climb_order(
    s: Scores[Float32Array],
    a: Ascent,
    found: Episodes,
    b: int,
    most: float,
    slopes: Slopes,
    chance: FloatArray,
    waiting: IntArray,
    following: IntArray,
    candidate: IntArray,
) -> None:
    """The part of the steps of episode b that select ops."""
    num, count = len(chance), 0
    waiting[:] = -1
    for v in range(num):  # of every step, a list of the ops that become candidates
        following[v] = waiting[found.ready[b, v]]
        waiting[found.ready[b, v]] = v
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
        v, log_total = found.order[b, step], np.log(total)
        weight = _pulled(a, b, s.select[v] - most - log_total, found.log_p[b, step, 0])
        entropy = log_total - lost / total
        slopes.select[v] += weight
        at = 0
        for i in range(count):
            u = candidate[i]
            q = chance[u] / total
            slopes.select[u] -= q * (weight + a.entropy * (s.select[u] - most - log_total + entropy))
            if u == v:
                at = i
        count -= 1
        candidate[at] = candidate[count]


@inlined
def _climb_device(
    s: Scores[Float32Array], a: Ascent, found: Episodes, b: int, step: int, row: int, slopes: Slopes, p: FloatArray
) -> None:
    """The part of a step of episode b that places an op."""
    able, x, home = found.able[b, step], found.features[b, step], found.home[b, step]
    highest = -np.inf
    for d in range(len(p)):
        if able[d]:
            p[d] = s.own[row, d]
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
    weight = _pulled(a, b, p[home], found.log_p[b, step, 1])
    for d in range(len(p)):
        if able[d]:
            q = np.exp(p[d])
            slope = weight * ((d == home) - q) - a.entropy * q * (p[d] + entropy)
            slopes.own[row, d] += slope
            for f in range(x.shape[1]):
                slopes.direct[row, f] += slope * x[d, f]


@inlined
def _pulled(a: Ascent, b: int, log_p: float, drawn: float) -> float:
    """The weight of a decision: that of its episode times its importance weight, nothing where that is clipped."""
    weight: float = a.weight[b]
    if a.clip < np.inf:
        ratio = np.exp(min(max(log_p - drawn, -MOST_CHANGE), MOST_CHANGE))
        is_beyond = ratio > 1.0 + a.clip if weight > 0.0 else ratio < 1.0 - a.clip or ratio > RATIO_LIMIT
        weight = 0.0 if is_beyond or abs(log_p - drawn) > MOST_CHANGE else weight * ratio
    return weight


def climb(scores: Scores[Float32Array], ascent: Ascent, found: Episodes, row: IntArray) -> Slopes:
    """The gradient of B episodes, whose ops have the rows ``row`` [B, N]."""
    n = len(scores.select)
    slopes = Slopes(np.zeros(n), np.zeros(scores.own.shape), np.zeros(scores.direct.shape))
    waiting, following, candidate = (np.zeros(n, np.int64) for _ in range(3))
    p, chance = np.zeros(scores.own.shape[1]), np.zeros(n)
    climb_many(scores, ascent, found, row, slopes, p, chance, waiting, following, candidate)
    return slopes
