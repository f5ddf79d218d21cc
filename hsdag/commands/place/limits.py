"""Limits of the answer: which devices, placements and units are ruled out by pins, memory or differing outputs.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from hsdag.base.errors import OptionError, option
from hsdag.commands.place.session import Session
from hsdag.drawing import in_bytes
from hsdag.ir.graph.colocation import resident_weight_bytes
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.pins import NOT_PINNED, restricted
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.memory import MEMORY_TOLERANCE, MemoryCheck
from hsdag.search.options import PlaceOptions

MARGIN = 0.8
"""Share of the largest difference up to which units are admitted to a device; other placements of the same units round
at other places."""

SMALLEST_SHARE = 1 / 16
"""Share of the units in question below which a stretch is not halved further."""


def too_large(session: Session, profile: ModelProfile | None) -> dict[str, str]:
    """Return why devices cannot hold the whole model, by name: its weights and state exceed their memory."""
    size_bytes = float(session.graph.weight_bytes.sum())
    return {
        name: f"the model's weights and state take {in_bytes(size_bytes)}, and it has {in_bytes(limit)}"
        for name, limit in session.memory_limits(profile).items()
        if size_bytes > limit
    }


def disallowed_devices(session: Session, options: PlaceOptions, profile: ModelProfile | None) -> dict[str, str]:
    """Return the reasons for which single devices are excluded, by name.

    A device is excluded if it breaks a pin, has too little memory for an inference, or is a whole device of which only
    the partitions have a memory limit.
    """
    reasons = {} if profile is None else _overfull(session, profile)
    limited = {spec.plugin for spec in session.devices.placed if spec.name in options.memory_bytes}
    for spec in session.devices.all:
        name = session.devices.defaults.get(spec.name, spec.name)
        is_whole = spec.name in session.devices.whole_devices
        if is_whole and spec.plugin in limited and name not in options.memory_bytes:
            reasons[spec.name] = f"{option('memory')} is about its parts"
        broken = next((pin for pin in options.pins if pin.device != name), None)
        if broken is not None:
            reasons[spec.name] = f"it breaks {broken}"
    return reasons


def _overfull(session: Session, profile: ModelProfile) -> dict[str, str]:
    """Return why devices are excluded whose memory is below the simulated peak of an inference, by name.

    The peak is that of one device with all ops, since the same ops have the same peak on every device.
    """
    problem = session.problem(profile=profile, is_free=True)
    able = np.flatnonzero(problem.supported.all(axis=0))
    if not len(able):
        return {}
    check = MemoryCheck(problem.known_costs, problem.semantics)
    peak = float(check.peak_bytes(np.full(problem.num_units, able[0])).max())
    return {
        name: f"an inference peaks at {in_bytes(peak)}, and it has {in_bytes(limit)}"
        for name, limit in session.memory_limits(profile).items()
        if peak > limit * (1 + MEMORY_TOLERANCE)
    }


def disallowed_start(session: Session, start: Placement, profile: ModelProfile) -> str | None:
    """Return why the placement to start with is excluded: it needs more memory than a device has; None if it fits."""
    limits = session.memory_limits(profile)
    problem = session.problem(profile=profile, is_free=True)
    chosen, index = op_devices(start, session.graph), session.devices.index
    if not set(chosen) <= set(index.names):
        return None
    device = np.array(index.positions(chosen))
    units = session.model.of_units(problem, device)
    taken = resident_weight_bytes(session.graph, device, session.widens)
    if units is not None:
        taken = np.maximum(taken, MemoryCheck(problem.known_costs, problem.semantics).peak_bytes(units))
    for name, size in zip(problem.devices, taken.tolist(), strict=True):
        if size > limits.get(name, np.inf) * (1 + MEMORY_TOLERANCE):
            return f"it takes {in_bytes(size)} on {name}, which has {in_bytes(limits[name])}"
    return None


def check_start(session: Session, start: Placement) -> None:
    """Raise OptionError if the placement to start with has a pinned op on another device."""
    placed = op_devices(start, session.graph)
    names = session.devices.index.names
    pinned = session.model.pinned
    assert pinned is not None  # a session always sets it
    for v in np.flatnonzero(pinned != NOT_PINNED).tolist():
        if placed[v] != names[pinned[v]]:
            raise OptionError(
                f"the placement to start with has op {session.graph.op_names[v]!r} on {placed[v]}, and "
                f"{option('pins')} puts it on {names[pinned[v]]}; leave one of them out"
            )


def within_difference(
    problem: Problem, limit: float, difference: Callable[[Plan], float], is_over: Callable[[], bool] = lambda: False
) -> tuple[Problem, tuple[str, ...]]:
    """Restrict a problem to placements whose outputs mostly stay within a limit.

    A device that exceeds the limit with the whole model gets only the units that no other device runs, and those that
    were measured to keep the limit together: stretches of the model are tried, the longest first, and those that differ
    too much are halved. So methods need not know of the limit. If no device keeps it, or all do, the problem stays as
    it is.

    Args:
        limit: Largest relative difference of outputs.
        difference: Runs a plan and returns the relative difference of its outputs.
        is_over: Returns True to end the measuring.

    Returns:
        The problem, and a sentence for users about each device that exceeds the limit.
    """
    apart = np.array([difference(plan) for plan in problem.alone])
    close: BoolArray = np.asarray(apart <= limit, dtype=np.bool_)
    if close.all() or not close.any():
        return problem, ()
    work = np.repeat(problem.units.graph.flops[:, None], problem.num_devices, axis=1)
    if problem.costs is not None:
        work = np.nan_to_num(problem.costs.time_s)
    has_close: BoolArray = np.asarray(problem.supported[:, close].any(axis=1), dtype=np.bool_)
    ranked = np.where(problem.supported & close[None, :], work, np.inf)
    placement = np.where(has_close, ranked.argmin(axis=1), problem.supported.argmax(axis=1))
    allowed = problem.supported & (close[None, :] | ~has_close[:, None])
    sentences = []
    for d in np.flatnonzero(~close).tolist():
        movable = problem.units.graph.topological_order
        movable = movable[(problem.supported[:, d] & has_close)[movable]]
        admitted = _admitted(placement, movable, d, work[:, d], MARGIN * limit, difference, is_over)
        placement[admitted] = d
        allowed[admitted, d] = True
        how = f"differ by {apart[d]:.2g}" if np.isfinite(apart[d]) else "are not comparable"
        sentences.append(
            f"with the whole model on {problem.devices[d]} outputs {how}, and {limit:g} is allowed; "
            f"{len(admitted)} of {len(movable)} units may run there"
        )
    return restricted(problem, allowed), tuple(sentences)


def _admitted(
    placement: IntArray,
    movable: IntArray,
    device: int,
    work: FloatArray,
    limit: float,
    difference: Callable[[Plan], float],
    is_over: Callable[[], bool],
) -> IntArray:
    """Return units that together keep the limit when moved from ``placement`` [U] to ``device``.

    Args:
        movable: Units to try, in topological order.
        work: Seconds, or FLOPs, of each unit on the device [U], by which stretches are halved.
        limit: Largest relative difference of outputs.
    """
    admitted = np.empty(0, dtype=np.int64)
    waiting = deque(_halves(movable, work))
    while waiting and not is_over():
        stretch = waiting.popleft()
        trial = placement.copy()
        trial[np.concatenate([admitted, stretch])] = device
        if difference(Plan(trial)) <= limit:
            admitted = np.concatenate([admitted, stretch])
        elif len(stretch) > max(SMALLEST_SHARE * len(movable), 1):
            waiting.extend(_halves(stretch, work))
    return admitted


def _halves(units: IntArray, work: FloatArray) -> list[IntArray]:
    """Return two non-empty parts of a stretch with about equal work; fewer for less than two units."""
    if len(units) < 2:
        return [units] if len(units) else []
    done = np.cumsum(work[units])
    cut = min(max(int(np.searchsorted(done, done[-1] / 2)), 1), len(units) - 1)
    return [units[:cut], units[cut:]]
