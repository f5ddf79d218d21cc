"""Pins: ops that must stay on a device, part of the problem, so that every method obeys.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.base.errors import OptionError, option
from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of

NOT_PINNED = -1
"""Device of an op that no pin names."""


@dataclass(frozen=True)
class Pin:
    """A rule that ops whose full name matches ``pattern`` stay on ``device``.

    Raises OptionError for a pattern that is not a regular expression.
    """

    pattern: str
    device: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise OptionError(f"{self}: {self.pattern!r} is not a regular expression: {error}") from error

    def __str__(self) -> str:
        return f"{option('pins')} {self.text}"

    @property
    def text(self) -> str:
        """Return the pin in the form that ``parse_pins`` reads."""
        return f"{self.pattern}={self.device}"

    def chosen(self, names: Sequence[str]) -> IntArray:
        """Return the indices of the names that match. Raises OptionError where none does."""
        whole = re.compile(self.pattern)
        matching = np.array([v for v, name in enumerate(names) if whole.fullmatch(name)], dtype=np.int64)
        if len(matching):
            return matching
        parts = sum(whole.search(name) is not None for name in names)
        hint = f"; it matches parts of {parts}: write .*{self.pattern}.*" if parts else f"; one op is {names[0]!r}"
        raise OptionError(f"{self}: no op's name matches {self.pattern!r} from end to end{hint}")


def parse_pins(texts: Sequence[str]) -> tuple[Pin, ...]:
    """Parse pins from ``REGEX=DEVICE``; the last equals sign counts. Raises OptionError for other forms."""
    pins = []
    for text in texts:
        pattern, _, device = text.rpartition("=")
        if not pattern or not device.strip():
            raise OptionError(f"{option('pins')} {text!r} is not of the form REGEX=DEVICE, such as 'head/.*=CPU'")
        pins.append(Pin(pattern, device.strip()))
    return tuple(pins)


def pinned_devices(
    names: Sequence[str], pins: Sequence[Pin], devices: Sequence[str], floats: BoolArray | None = None
) -> IntArray:
    """Return [N] the device that each op is pinned to, or NOT_PINNED; floating ops follow their readers.

    Raises OptionError for a device that is not there, a pattern that names no op or only floating ops, and an op that
    is pinned to two devices.
    """
    pinned = np.full(len(names), NOT_PINNED, dtype=np.int64)
    by: dict[int, Pin] = {}
    for pin in pins:
        if pin.device not in devices:
            raise OptionError(f"{pin} names device {pin.device!r}; the devices are {', '.join(devices)}")
        chosen = pin.chosen(names)
        if floats is not None:
            chosen = chosen[~floats[chosen]]
            if not len(chosen):
                raise OptionError(
                    f"{pin} names only constants, which are copied to whatever reads them: pin the readers"
                )
        for v in chosen.tolist():
            if by.setdefault(v, pin).device != pin.device:
                raise OptionError(f"{by[v]} and {pin} contradict each other: both name op {names[v]!r}")
        pinned[chosen] = devices.index(pin.device)
    return pinned


def with_pins(problem: Problem, pinned: IntArray) -> Problem:
    """Return the problem with every unit that has a pinned op on that op's device alone.

    Raises OptionError where a unit has ops that are pinned to two devices, or its device does not support it.
    """
    labels, names = problem.units.partition.labels, problem.units.fine.op_names
    supported = problem.supported.copy()
    by = dict[int, int]()
    for v in np.flatnonzero(pinned != NOT_PINNED).tolist():
        unit, device = int(labels[v]), int(pinned[v])
        first = by.setdefault(unit, v)
        if pinned[first] != device:
            one, other = problem.devices[pinned[first]], problem.devices[device]
            raise OptionError(
                f"{option('pins')} puts op {names[first]!r} on {one} and op {names[v]!r} on {other}, "
                "but these ops are tied together and share a device"
            )
        if not problem.supported[unit, device]:
            raise OptionError(
                f"{option('pins')} puts op {names[v]!r} on {problem.devices[device]}, which does not run it "
                "or an op tied to it"
            )
        supported[unit] = np.arange(problem.num_devices) == device
    return restricted(problem, supported)


def restricted(problem: Problem, supported: BoolArray) -> Problem:
    """Return the problem with fewer choices; ``supported`` [U, D] must not add a device for a unit."""
    costs, ops = problem.costs, problem.ops
    if costs is not None:
        costs = replace(costs, time_s=np.where(supported, costs.time_s, np.nan))
    if isinstance(ops, ScheduleProblem):
        ops = replace(ops, time_s=np.where(supported[problem.units.partition.labels], ops.time_s, np.nan))
    return replace(problem, supported=supported, costs=costs, ops=ops)


def with_pinned_ops(problem: ScheduleProblem, pins: Sequence[Pin]) -> ScheduleProblem:
    """Return a problem by ops, in which pinned ops and those tied to them have a time on their device alone.

    Raises OptionError as ``pinned_devices`` and ``with_pins`` do.
    """
    ops = with_pins(problem_of(problem), pinned_devices(problem.op_names, pins, problem.device_names)).ops
    assert isinstance(ops, ScheduleProblem)
    return ops
