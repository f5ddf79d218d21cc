"""Find the blocks of a graph that repeat, and which of their ops correspond.

Legend: N ops, E edges, B blocks, P positions, M ops of a block, I inputs of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import Csr, IntArray, inverse_of
from hsdag.ir.graph.paths import longest_before
from hsdag.methods.exact.formulation import with_inputs
from hsdag.methods.exact.stages import cuts_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

Hashes = NDArray[np.uint64]
"""Hash of each op [N]; equal ones mark ops that look alike."""

ROUNDS = (1, 4, 12)
"""Radii, in edges, of the neighbourhoods by which ops are told apart, each of them tried.

A larger radius distinguishes more ops, but more ops at both ends of the graph then have no counterpart.
"""
MOST_CANDIDATES = 60
"""Largest number of kinds of ops that are tried as the first ops of blocks, for each of ROUNDS."""
MOST_LEFT = 0.75
"""Largest share of ops in blocks unlike any earlier one; with more, the graph counts as not repeating."""
CLOSE = 1.15
"""A division counts as good as the best with at most this many times its ops in blocks unlike any earlier one."""
LEAST_ALIKE = 0.6
"""Least share of a kind's ops that a different block must contain to count as one of that kind.

The first and the last block lack neighbours beyond the ends of the graph.
"""
LEAST_LONE = 0.75
"""Search a part between cuts that is unlike any other from this size on, relative to the largest repeated part."""
LEAST_PERIODS, LEAST_SAME, MOST_OF_A_PERIOD = 3, 0.9, 500
"""Least number of periods; least share of blocks of the same kind as the block one period before; most ops of a period.

Searching a larger period as a whole takes too long.
"""
LEAST_OPS = 8
"""Least number of ops of a block that is searched by itself."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A division of a graph into blocks, of which no op reads from a later one.

    Two ops of the same position are counterparts in two blocks of one kind.
    """

    block: IntArray  # [N]
    position: IntArray  # [N] -1 for an op without a counterpart
    kind: IntArray  # [B] -1 for a block unlike any other

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks, B."""
        return len(self.kind)

    def fullest(self, kind: int) -> IntArray:
        """Return the ops [M] of a block of a kind that has the fewest ops without counterparts.

        Of several such blocks, the middle one is taken.
        """
        members = np.flatnonzero(self.kind == kind)
        lacking = [int((self.position[self.block == b] < 0).sum()) for b in members.tolist()]
        best = members[np.flatnonzero(np.array(lacking) == min(lacking))]
        return np.flatnonzero(self.block == best[len(best) // 2])


@lru_cache(maxsize=1)
def find_blocks(problem: ScheduleProblem) -> Blocks | None:
    """Return the blocks that leave the fewest ops to decide on; None if no block of at least LEAST_OPS ops repeats.

    Left to decide on are the ops of blocks unlike any earlier one. The depth of an op is the number of ops before it on
    its longest path; blocks begin at the depths of ops of one kind, and kinds are told apart by their neighbourhoods.
    Of divisions that leave about equally few ops, the one whose blocks send each other the fewest bytes is returned.
    """
    inputs = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    depth = longest_before(problem.topological_order, inputs, np.ones(problem.num_ops)).astype(np.int64)
    exact = _exact_hashes(problem)
    tried: dict[bytes, tuple[int, float, IntArray]] = {}
    for number in ROUNDS:
        alike = _refined(problem, _hashes_of_types(problem), number)
        for kind in _candidates(alike):
            begins = np.union1d(0, depth[alike == kind])
            if len(begins) > 2 and begins.tobytes() not in tried:
                block = _divided(problem, depth, begins)
                signature = np.zeros(int(block.max()) + 1, dtype=np.uint64)
                np.add.at(signature, block, _mixed(exact))
                size = np.bincount(block, minlength=len(signature))
                left = int(size[np.unique(signature, return_index=True)[1]].sum())  # ops of blocks unlike earlier ones
                tried[begins.tobytes()] = left, _sent_bytes(problem, block), block
    least = min((left for left, _, _ in tried.values()), default=problem.num_ops)
    if least > MOST_LEFT * problem.num_ops:
        return None
    close = [division for division in tried.values() if division[0] <= CLOSE * least]
    return _matched(problem, min(close, key=itemgetter(1))[2])


def _divided(problem: ScheduleProblem, depth: IntArray, begins: IntArray) -> IntArray:
    """Return the block of each op [N] for blocks that begin at the depths ``begins`` [B].

    Ops without inputs go to the block that reads them first, and so do ops of the first block that depend on these
    alone and that only a later block reads, such as conversions of weights.
    """
    block = np.searchsorted(begins, depth, side="right") - 1
    while True:
        first = np.full(problem.num_ops, len(begins), dtype=np.int64)
        np.minimum.at(first, problem.edge_src, block[problem.edge_dst])
        if not (is_later := (first < len(begins)) & (block == 0) & (first > (depth > 0))).any():
            return block
        block = np.where(is_later, first, block)


def _sent_bytes(problem: ScheduleProblem, block: IntArray) -> float:
    """Return the bytes that pass from each block to the next, added over all blocks.

    Results that pass through several blocks count each time; results of ops without inputs do not count.
    """
    last = block.copy()
    np.maximum.at(last, problem.edge_src, block[problem.edge_dst])
    has_inputs = np.bincount(problem.edge_dst, minlength=problem.num_ops) > 0
    return float(((last - block) * problem.output_bytes)[has_inputs].sum())


def _mixed(values: Hashes) -> Hashes:
    """Return values [N] hashed by SplitMix64's finaliser, so that sums of hashes tell multisets apart."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def _hashes_of_types(problem: ScheduleProblem) -> Hashes:
    """Return hashes [N] that are equal for ops of the same type and role."""
    labels = list(zip(problem.labels.types, problem.labels.roles, strict=True))
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels], dtype=np.uint64)


def _exact_hashes(problem: ScheduleProblem) -> Hashes:
    """Return hashes [N] that are equal for ops which agree, as do their neighbours, in type, role and all costs."""
    hashes = _hashes_of_types(problem)
    for column in (*problem.time_s.T, problem.output_bytes, problem.weight_bytes):
        hashes = _mixed(hashes ^ np.ascontiguousarray(column + 0.0).view(np.uint64))
    return _refined(problem, hashes, 1)


def _refined(problem: ScheduleProblem, hashes: Hashes, rounds: int) -> Hashes:
    """Return hashes [N] that are equal for ops whose neighbourhoods of radius ``rounds`` look alike."""
    for _ in range(rounds):
        mixed, read, sent = _mixed(hashes), np.zeros_like(hashes), np.zeros_like(hashes)
        np.add.at(read, problem.edge_dst, _mixed(mixed[problem.edge_src]))
        np.add.at(sent, problem.edge_src, _mixed(mixed[problem.edge_dst] ^ np.uint64(1)))
        hashes = _mixed(_mixed(mixed + read) + sent)
    return hashes


def _candidates(alike: Hashes) -> list[np.uint64]:
    """Return kinds of several ops, the most frequent first; of more than MOST_CANDIDATES, some of every frequency."""
    kinds, counts = np.unique(alike, return_counts=True)
    several = np.flatnonzero(counts > 1)
    chosen = several[np.argsort(-counts[several], kind="stable")]
    if len(chosen) > MOST_CANDIDATES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_CANDIDATES).astype(np.int64)]
    return [kinds[i] for i in chosen]


def _matched(problem: ScheduleProblem, block: IntArray, least_lone: float = np.inf) -> Blocks | None:
    """Return the kinds of blocks, and the positions of their ops; None if no kind has at least LEAST_OPS ops.

    Counterparts look alike, and have the same number among the ops of their block that look alike.

    Args:
        block: Block of each op [N].
        least_lone: Least size of a block unlike any other, relative to the largest repeated one, that is a kind of its
            own.
    """
    num = int(block.max()) + 1
    exact = _exact_hashes(problem)
    place = inverse_of(problem.topological_order)
    by_key = np.lexsort((place, exact, block))
    is_same = (block[by_key][1:] == block[by_key][:-1]) & (exact[by_key][1:] == exact[by_key][:-1])
    first = np.flatnonzero(np.append(True, ~is_same))
    occurrence = np.arange(len(by_key)) - np.repeat(first, np.diff(np.append(first, len(by_key))))
    key = np.empty(len(block), dtype=np.uint64)
    key[by_key] = _mixed(exact[by_key] + occurrence.astype(np.uint64))
    members = [np.flatnonzero(block == b) for b in range(num)]
    signature = [np.sort(key[ops]).tobytes() for ops in members]
    count = Counter(signature)
    largest = max((len(text) for text, times in count.items() if times > 1), default=0)
    common = [text for text, times in count.most_common() if times > 1 or len(text) >= least_lone * largest > 0]
    kinds = {text: i for i, text in enumerate(common)}
    keys_of = [set(np.frombuffer(text, dtype=np.uint64).tolist()) for text in common]
    if not any(len(keys) >= LEAST_OPS for keys in keys_of):
        return None
    kind, position = np.full(num, -1, dtype=np.int64), np.full(len(block), -1, dtype=np.int64)
    number: dict[tuple[int, int], int] = {}
    for b, ops in enumerate(members):
        keys = key[ops].tolist()
        shares = [sum(k in of_kind for k in keys) / max(len(of_kind), 1) for of_kind in keys_of]
        nearest = kinds.get(signature[b], int(np.argmax(shares)))
        if signature[b] not in kinds and shares[nearest] < LEAST_ALIKE:
            continue
        kind[b] = nearest
        for v, key_of_op in zip(ops.tolist(), keys, strict=True):
            if key_of_op in keys_of[nearest]:
                position[v] = number.setdefault((nearest, key_of_op), len(number))
    return Blocks(block, position, kind)


def in_periods(problem: ScheduleProblem, blocks: Blocks) -> Blocks:
    """Return blocks that each join a whole period, if kinds of blocks recur in the same order.

    The best plans of small parts need not make a good plan of a whole period. Periods begin where the fewest bytes pass
    from one to the next. Returns ``blocks`` if kinds do not recur, or if a period has more than MOST_OF_A_PERIOD ops.
    """
    kind, num = blocks.kind, blocks.num_blocks
    size = np.bincount(blocks.block, minlength=num)
    for period in range(1, num // LEAST_PERIODS + 1):
        is_same = (kind[period:] == kind[:-period]) & (kind[period:] >= 0)
        if is_same.mean() >= LEAST_SAME:
            break
    else:
        return blocks
    if period == 1 or np.convolve(size, np.ones(period, dtype=np.int64)).max() > MOST_OF_A_PERIOD:
        return blocks
    joined = [((np.arange(num) + begin) // period)[blocks.block] for begin in range(period)]
    best = min(joined, key=lambda block: _sent_bytes(problem, block))
    return _matched(problem, best) or blocks


def between_cuts(problem: ScheduleProblem, blocks: Blocks) -> Blocks:
    """Return the parts between cuts, no two of which overlap in time; ``blocks`` if these have the smaller median size.

    Of cuts close to each other, only the last one is used.
    """
    place, cuts = cuts_of(problem)
    at = place[cuts]
    part = np.searchsorted(at[np.diff(at, append=problem.num_ops) >= LEAST_OPS], place)
    first_reader = np.full(problem.num_ops, part.max())
    np.minimum.at(first_reader, problem.edge_src, part[problem.edge_dst])
    part = np.where(place < 0, first_reader, part)
    if np.median(np.bincount(part)) > np.median(np.bincount(blocks.block)):
        return blocks
    return _matched(problem, part, LEAST_LONE) or blocks


def outside_inputs(problem: ScheduleProblem, ops: IntArray) -> IntArray:
    """Return the ops [I] that some of ``ops`` [M] read and that are not among them."""
    is_part = np.zeros(problem.num_ops, dtype=np.bool_)
    is_part[ops] = True
    return np.unique(problem.edge_src[is_part[problem.edge_dst] & ~is_part[problem.edge_src]])


def part_of(problem: ScheduleProblem, inputs: IntArray, ops: IntArray) -> ScheduleProblem:
    """Return the problem of ``inputs`` [I], which take no time, and ``ops`` [M].

    Its memories are what all other ops leave with their weights, and with results of those without inputs, if these
    fill the same share of each device.
    """
    is_source = np.bincount(problem.edge_dst, minlength=problem.num_ops) == 0
    elsewhere = float(np.delete(problem.weight_bytes + is_source * problem.output_bytes, ops).sum())
    memory_bytes = problem.memory_bytes * max(1.0 - elsewhere / float(problem.memory_bytes.sum()), 0.0)
    memory_bytes = np.where(np.isinf(problem.memory_bytes), np.inf, memory_bytes)
    return replace(with_inputs(problem, inputs, ops), memory_bytes=memory_bytes)
