"""Blocks: the parts of a graph that repeat, and which of their ops correspond.

Legend: N ops, E edges, B blocks, P positions, M ops of a block, I inputs of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import Csr, IntArray, inverse_of
from hsdag.ir.graph.paths import longest_before
from hsdag.methods.exact.formulation import with_inputs
from hsdag.methods.exact.stages import cuts_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

Hashes = NDArray[np.uint64]

ROUNDS = (1, 4, 12)
"""How far around an op what tells it from others may lie; more tells more apart, and spoils more of the ends."""
MOST_CANDIDATES = 60
"""Kinds of ops that are tried as the first ops of blocks, for each of ROUNDS."""
MOST_LEFT = 0.75
"""Share of the ops that may be left to decide where something repeats."""
CLOSE = 1.15
"""What is left to decide, over the least, in ways to divide a graph that are as good."""
LEAST_ALIKE = 0.6
"""Share of a block's ops that a block of another kind needs to have counterparts of to be taken for one of that kind:
the first and the last block lack what lies beyond the ends."""
LEAST_LONE = 0.75
"""Ops of a part between barriers that no other is like, over those of the largest of others, to be searched as well."""
LEAST_PERIODS, LEAST_SAME, MOST_OF_A_PERIOD = 3, 0.9, 500
"""Periods that there have to be, the share of blocks that are like the one a period before, and ops of a period that is
worth a search as a whole: that of more takes too long."""
LEAST_OPS = 8
"""Ops of a block that is worth a search of its own."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Ops by block and position; no op reads from a later block.

    Two ops of one position are each other's counterparts in blocks of one kind.
    """

    block: IntArray  # [N]
    position: IntArray  # [N] -1 without a counterpart
    kind: IntArray  # [B] -1 of blocks that are like no others

    @property
    def num_blocks(self) -> int:
        """B."""
        return len(self.kind)

    def fullest(self, kind: int) -> IntArray:
        """The ops of a block of a kind that lacks no counterpart, in the middle of those."""
        members = np.flatnonzero(self.kind == kind)
        lacking = [int((self.position[self.block == b] < 0).sum()) for b in members.tolist()]
        best = members[np.flatnonzero(np.array(lacking) == min(lacking))]
        return np.flatnonzero(self.block == best[len(best) // 2])


@lru_cache(maxsize=1)
def find_blocks(problem: ScheduleProblem) -> Blocks | None:
    """The blocks by which the graph has least to decide, None where nothing of LEAST_OPS repeats.

    A block begins at a depth, the number of ops before an op on its longest path, at which ops of one kind lie; kinds
    are told apart by their neighbourhoods. Of ways to divide a graph that leave about as little to decide, that one
    counts whose blocks send each other least.
    """
    inputs = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    hops = np.zeros(len(problem.edge_src))
    depth = longest_before(problem.topological_order, inputs, np.ones(problem.num_ops), hops).astype(np.int64)
    exact = _refined(problem, _hashes_of_costs(problem), 1)
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
                left = int(size[np.unique(signature, return_index=True)[1]].sum())  # of blocks like no earlier one
                tried[begins.tobytes()] = left, _sent_bytes(problem, block), block
    least = min((size for size, _, _ in tried.values()), default=problem.num_ops)
    if least > MOST_LEFT * problem.num_ops:
        return None
    close = [each for each in tried.values() if each[0] <= CLOSE * least]
    return _matched(min(close, key=lambda each: each[1:2])[2], exact, inverse_of(problem.topological_order))


def _divided(problem: ScheduleProblem, depth: IntArray, begins: IntArray) -> IntArray:
    """[N] the block of each op, of blocks that begin at given depths.

    Ops without inputs, and what the first block computes of these for a later one alone, such as weights that are
    converted, go to the block that reads them first.
    """
    block = np.searchsorted(begins, depth, side="right") - 1
    while True:
        first = np.full(problem.num_ops, len(begins), dtype=np.int64)
        np.minimum.at(first, problem.edge_src, block[problem.edge_dst])
        if not (is_later := (first < len(begins)) & (block == 0) & (first > (depth > 0))).any():
            return block
        block = np.where(is_later, first, block)


def _sent_bytes(problem: ScheduleProblem, block: IntArray) -> float:
    """Bytes that go from each block to the next, those counted again that go on; not those of ops without inputs."""
    last = block.copy()
    np.maximum.at(last, problem.edge_src, block[problem.edge_dst])
    has_inputs = np.bincount(problem.edge_dst, minlength=problem.num_ops) > 0
    return float(((last - block) * problem.output_bytes)[has_inputs].sum())


def _mixed(values: Hashes) -> Hashes:
    """SplitMix64's finaliser: sums of what it returns tell multisets apart."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


def _hashes_of_types(problem: ScheduleProblem) -> Hashes:
    """[N] equal for ops of one type and role."""
    labels = list(zip(problem.labels.types, problem.labels.roles, strict=True))
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels], dtype=np.uint64)


def _hashes_of_costs(problem: ScheduleProblem) -> Hashes:
    """[N] equal for ops of one type whose costs are the same on every device."""
    found = _hashes_of_types(problem)
    for column in (*problem.time_s.T, problem.output_bytes, problem.weight_bytes):
        found = _mixed(found ^ np.ascontiguousarray(column + 0.0).view(np.uint64))
    return found


def _refined(problem: ScheduleProblem, start: Hashes, rounds: int) -> Hashes:
    """[N] equal for ops whose neighbourhoods of so many steps look alike."""
    found = start
    for _ in range(rounds):
        own, read, sent = _mixed(found), np.zeros_like(found), np.zeros_like(found)
        np.add.at(read, problem.edge_dst, _mixed(own[problem.edge_src]))
        np.add.at(sent, problem.edge_src, _mixed(own[problem.edge_dst] ^ np.uint64(1)))
        found = _mixed(_mixed(own + read) + sent)
    return found


def _candidates(alike: Hashes) -> list[np.uint64]:
    """Kinds of ops of which there are several, the most frequent first; of many, some of every frequency."""
    kinds, counts = np.unique(alike, return_counts=True)
    several = np.flatnonzero(counts > 1)
    chosen = several[np.argsort(-counts[several], kind="stable")]
    if len(chosen) > MOST_CANDIDATES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_CANDIDATES).astype(np.int64)]
    return [kinds[i] for i in chosen]


def _matched(block: IntArray, exact: Hashes, place: IntArray, least_lone: float = np.inf) -> Blocks | None:
    """Blocks by kind with counterparts, which look alike and come at the same place among their like; a block like no
    other is a kind of its own from ``least_lone`` times the ops of the largest of several on."""
    num = int(block.max()) + 1
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
        shares = [sum(each in known for each in keys) / max(len(known), 1) for known in keys_of]
        k = kinds.get(signature[b], int(np.argmax(shares)))
        if signature[b] not in kinds and shares[k] < LEAST_ALIKE:
            continue
        kind[b] = k
        for v, each in zip(ops.tolist(), keys, strict=True):
            if each in keys_of[k]:
                position[v] = number.setdefault((k, each), len(number))
    return Blocks(block, position, kind)


def in_periods(problem: ScheduleProblem, blocks: Blocks) -> Blocks:
    """Return blocks that join all parts of a period, where kinds of blocks come again and again in the same order.

    The best plans of small parts need not make a good plan of a whole period. Of the places where a period may begin,
    that one counts where least is sent on. Returns ``blocks`` where no period has at most MOST_OF_A_PERIOD ops.
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
    exact = _refined(problem, _hashes_of_costs(problem), 1)
    return _matched(best, exact, inverse_of(problem.topological_order)) or blocks


def between_cuts(problem: ScheduleProblem, blocks: Blocks) -> Blocks:
    """Parts between cuts, no two of which overlap in time; ``blocks`` where most of these are smaller.

    Of cuts close to each other the last one counts.
    """
    place, cuts = cuts_of(problem)
    at = place[cuts]
    part = np.searchsorted(at[np.diff(at, append=problem.num_ops) >= LEAST_OPS], place)
    first_reader = np.full(problem.num_ops, part.max())
    np.minimum.at(first_reader, problem.edge_src, part[problem.edge_dst])
    part = np.where(place < 0, first_reader, part)
    if np.median(np.bincount(part)) > np.median(np.bincount(blocks.block)):
        return blocks
    exact = _refined(problem, _hashes_of_costs(problem), 1)
    return _matched(part, exact, inverse_of(problem.topological_order), LEAST_LONE) or blocks


def inputs_of(problem: ScheduleProblem, ops: IntArray) -> IntArray:
    """[I] the ops that some of ``ops`` [M] read and that are not among them."""
    is_part = np.zeros(problem.num_ops, dtype=np.bool_)
    is_part[ops] = True
    return np.unique(problem.edge_src[is_part[problem.edge_dst] & ~is_part[problem.edge_src]])


def part_of(problem: ScheduleProblem, inputs: IntArray, ops: IntArray) -> ScheduleProblem:
    """The problem of ``inputs`` [I], which cost no time, and of ``ops`` [M].

    Of the memories it has what the weights of all other ops leave, were they in equal shares on all devices.
    """
    chosen = np.append(inputs, ops)
    part = with_inputs(problem, inputs, ops)
    kept = replace(
        part.labels,
        types=tuple(problem.labels.types[v] for v in chosen),
        meta_ops=tuple(problem.labels.meta_ops[v] for v in chosen),
        roles=tuple(problem.labels.roles[v] for v in chosen),
    )
    is_source = np.bincount(problem.edge_dst, minlength=problem.num_ops) == 0
    elsewhere = float(np.delete(problem.weight_bytes + is_source * problem.output_bytes, ops).sum())
    memory_bytes = problem.memory_bytes * max(1.0 - elsewhere / float(problem.memory_bytes.sum()), 0.0)
    memory_bytes = np.where(np.isinf(problem.memory_bytes), np.inf, memory_bytes)
    return replace(part, memory_bytes=memory_bytes, labels=kept)
