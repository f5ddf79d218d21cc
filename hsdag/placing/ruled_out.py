"""Splits that a profile rules out: over devices that gain nothing side by side. Legend: N ops, D devices."""

from __future__ import annotations

import itertools

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.measuring.profile import Contention
from hsdag.runtime.problem.pins import restricted
from hsdag.runtime.problem.problem import Problem

LEAST_GAIN = 0.05
"""A split over two devices must be able to gain this much over the better of them, before boundaries cost anything."""

LIKE = 0.1
"""How far the factors of two devices with a third one may differ for the two to count as alike to it."""

NUM_PRICES = 129


def overlap_bound_s(time_s: FloatArray, slow: tuple[float, float]) -> float:
    """Seconds that ops of ``time_s`` [N, 2] take at least on two devices that slow each other down by ``slow``.

    While both work, they do 1 / slow seconds of their work each second. Whoever prices work on them at p and q, both at
    most 1, with p / slow[0] + q / slow[1] at most 1, pays no more than a second for each second; and no division of the
    ops costs less than each on the cheaper device. The highest of such prices gives the bound, by linear programming
    duality that of ops that could be divided, did not depend on each other, and went from device to device for nothing.
    """
    p = np.linspace(0.0, 1.0, NUM_PRICES)
    q = np.minimum(1.0, slow[1] * (1.0 - p / slow[0]))
    cheaper_s = np.fmin(p[:, None] * time_s[:, 0], q[:, None] * time_s[:, 1])
    return float(np.nansum(cheaper_s, axis=1).max())


def without_ruled_out(problem: Problem, contention: Contention) -> tuple[Problem, tuple[str, ...]]:
    """The problem without splits over two devices that cannot gain, and a sentence on each such pair.

    Of such a pair the device that takes longer for the model runs nothing any more; so it is only ruled out where the
    other one runs all of it too, and third devices are slowed down alike by either. The lower end of the interval of
    the model's own factors decides: where they are uncertain, nothing is ruled out. Raises ValueError without costs.
    """
    if problem.costs is None:
        raise ValueError("a problem without costs rules nothing out")
    time_s, factor, least = problem.costs.time_s, contention.factor["model"], contention.least["model"]
    total_s = np.where(problem.supported.all(axis=0), time_s.sum(axis=0), np.inf)
    supported, sentences = problem.supported.copy(), []
    for a, b in itertools.combinations(range(problem.num_devices), 2):
        kept, other = (a, b) if total_s[a] <= total_s[b] else (b, a)
        are_left = supported[:, [a, b]].any(axis=0).all() and np.isfinite(total_s[kept])
        if not are_left or np.isnan(least[[a, b], [b, a]]).any():
            continue
        bound_s = overlap_bound_s(time_s[:, [a, b]], (least[a, b], least[b, a]))
        if bound_s < (1.0 - LEAST_GAIN) * total_s[kept] or not _are_alike(contention, kept, other):
            continue
        supported[:, other] = False
        sentences.append(_sentence(problem.devices[a], problem.devices[b], factor[a, b], factor[b, a]))
    if not sentences:
        return problem, ()
    return restricted(problem, supported), tuple(sentences)


def _are_alike(contention: Contention, a: int, b: int) -> bool:
    """Whether every other device and ``a`` slow each other down no more than that device and ``b`` do."""
    table = contention.slowdown
    others = [c for c in range(len(table)) if c not in (a, b)]
    return bool(
        (table[a, others] <= (1.0 + LIKE) * table[b, others]).all()
        and (table[others, a] <= (1.0 + LIKE) * table[others, b]).all()
    )


def _sentence(first: str, second: str, slow: float, other_slow: float) -> str:
    figures = f"each takes {slow:.2f} times as long"
    if f"{slow:.2f}" != f"{other_slow:.2f}":
        figures = f"they take {slow:.2f} and {other_slow:.2f} times as long"
    return f"{first} and {second} share hardware: side by side {figures}, so that no split over both can gain"
