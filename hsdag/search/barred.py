"""Barred: candidates that are measured for comparison and can be no answer, because they do not keep the limits.

Legend: N ops, D devices.
"""

from __future__ import annotations

import numpy as np

from hsdag.evaluators.memory import MEMORY_TOLERANCE, MemoryCheck
from hsdag.ir.colocation import held_bytes
from hsdag.ir.errors import OptionError
from hsdag.ir.placement import Placement
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problems.pins import NOT_PINNED
from hsdag.search.final import FinalResult
from hsdag.search.options import PlaceOptions
from hsdag.search.session import Session, in_bytes


def barred_devices(session: Session, options: PlaceOptions, profile: ModelProfile | None) -> dict[str, str]:
    """Why single devices can be no answer: they break a pin, or a whole inference takes more memory than they have."""
    found = {}
    for spec in session.devices.all:
        broken = next((pin for pin in options.pins if pin.device != spec.name), None)
        if broken is not None:
            found[spec.name] = f"it breaks {broken}"
    return (_overfull(session, profile) if profile is not None else {}) | found


def _overfull(session: Session, profile: ModelProfile) -> dict[str, str]:
    """Devices on which the simulated peak of an inference exceeds the memory; the same ops peak alike anywhere."""
    problem = session.problem(profile=profile, is_free=True)
    if problem.costs is None:
        return {}
    judge = MemoryCheck(problem.costs, problem.semantics)
    able = np.flatnonzero(problem.supported.all(axis=0))
    limits = session.memory_limits(profile)
    if not len(able) or not limits:
        return {}
    peak = float(judge.peak_bytes(np.full(problem.num_units, able[0])).max())
    over = {name: limit for name, limit in limits.items() if peak > limit * (1 + MEMORY_TOLERANCE)}
    return {
        name: f"an inference peaks at {in_bytes(peak)}, and it has {in_bytes(limit)}" for name, limit in over.items()
    }


def barred_start(session: Session, start: Placement, profile: ModelProfile) -> str | None:
    """Why the placement to start with can be no answer: it takes more memory than its devices have; None if not."""
    limits, problem = session.memory_limits(profile), session.problem(profile=profile, is_free=True)
    names = {device.name: device.spec().openvino_name for device in start.devices}
    chosen = start.devices_of(session.graph)
    index = {spec.name: d for d, spec in enumerate(session.devices.placed)}
    if not limits or not set(chosen) <= set(index):
        return None
    units = session.of_units(problem, [names[device] for device in chosen])
    device = np.array([index[name] for name in chosen])
    taken = held_bytes(session.graph, device, session.widens)
    if units is not None and problem.costs is not None:
        taken = np.maximum(taken, MemoryCheck(problem.costs, problem.semantics).peak_bytes(units))
    for name, size in zip(problem.devices, taken.tolist(), strict=True):
        if size > limits.get(name, np.inf) * (1 + MEMORY_TOLERANCE):
            return f"it takes {in_bytes(size)} on {name}, which has {in_bytes(limits[name])}"
    return None


def faster_but_barred(result: FinalResult) -> dict[str, str]:
    """Why candidates that were measured to be faster than the answer are none; the best single device in any case."""
    compared = result.comparison
    return {
        name: why
        for name, why in result.barred.items()
        if name == result.best_single
        or (name in compared.samples and compared.median_s(name) < compared.median_s(result.answer))
    }


def unheld(options: PlaceOptions) -> str | None:
    """What OpenVINO's own choices are made without."""
    limits = {
        "--pin": bool(options.pins),
        "--memory": bool(options.memory_bytes),
        "--max-difference": options.max_difference is not None,
    }
    given = [name for name, is_given in limits.items() if is_given]
    return f"without {' and '.join(given)}" if given else None


def check_start(session: Session, start: Placement) -> None:
    """Raise OptionError where the placement to start with has a pinned op on another device."""
    placed, graph = start.devices_of(session.graph), session.graph
    names = [spec.name for spec in session.devices.placed]
    for v in np.flatnonzero(session.pinned != NOT_PINNED).tolist():
        if placed[v] != names[session.pinned[v]]:
            raise OptionError(
                f"the placement to start with has op {graph.op_names[v]!r} on {placed[v]}, and --pin puts it on "
                f"{names[session.pinned[v]]}; leave one of them out"
            )
