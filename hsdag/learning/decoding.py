"""Sequential decoding: select an op, place it, and go on, from tables that one pass of the networks made.

Where message passing runs once per episode (DOPPLER §4.3), all that changes within one is what is placed already. A
compiled loop over tables decodes an episode of a few hundred ops in about a millisecond; what it recorded is enough to
compute all log-probabilities again in one batched pass.

Legend: B episodes, N ops, D devices, F features of a device, H and K hidden widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import IntArray
from hsdag.learning.decoding_kernel import decode_many
from hsdag.learning.decoding_records import ROOM, RULES, Episodes, Room, Scores
from hsdag.runtime.platforms.usable import in_parts, usable_cpus
from hsdag.runtime.problems.tables import Tables, lengths_of
from hsdag.runtime.simulator.heaps import Records


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
