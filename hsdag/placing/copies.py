"""Copies in a search for throughput: the sets of devices that are worth a copy of the whole model each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.placing.session import Session
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.search.options import PlaceOptions

NUM_SETS = 2
"""Sets of devices that are compared, the best by simulation."""


@dataclass(frozen=True)
class Copies:
    """Indices of the devices that have a copy each, and the simulated seconds per inference: infinite if unknown."""

    devices: tuple[int, ...]
    period_s: float

    def candidate(self, session: Session) -> Candidate:
        """The copies as something to compile."""
        return Candidate.copied([(session.devices.placed[d].openvino_name, None) for d in self.devices])


def proposed_copies(session: Session, options: PlaceOptions, profile: ModelProfile | None) -> dict[str, Copies]:
    """Sets of at least two devices, by the names that they have in the comparison; none where the options leave none.

    Every copy has to fit into the memory of its device, and pins that name a device for an op rule copies out.
    """
    if session.is_on_torch or options.pins or not options.objective.is_steady or options.executor == "hetero":
        return {}
    placed, too_large = session.devices.placed, session.too_large(profile)
    able = [d for d, spec in enumerate(placed) if spec.name not in too_large and not len(session.unsupported_ops(spec))]
    if profile is None:
        found = [Copies(tuple(able), np.inf)] if len(able) > 1 else []
    else:
        costs = WorkConservingCosts.of(session.graph, profile.costs(session.graph), profile.links.syncs)
        whole_s = np.nan_to_num(costs.cut_costs.op_s).sum(axis=0) + costs.cut_costs.launch_s
        found = best_sets(able, whole_s, costs.slowdown)
    return {f"copies {rank}": copies for rank, copies in enumerate(found, start=1)}


def best_sets(able: Sequence[int], whole_s: FloatArray, slowdown: FloatArray | None) -> list[Copies]:
    """The sets with the largest sums of rates; each device is slowed down by all others of its set [D, D]."""
    slow = np.ones((len(whole_s), len(whole_s))) if slowdown is None else slowdown
    found = []
    for size in range(2, len(able) + 1):
        for chosen in itertools.combinations(able, size):
            rates = [1.0 / (whole_s[d] * np.prod([slow[d, e] for e in chosen if e != d])) for d in chosen]
            found.append(Copies(chosen, float(1.0 / np.sum(rates))))
    return sorted(found, key=lambda copies: copies.period_s)[:NUM_SETS]
