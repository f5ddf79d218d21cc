"""The processors and memory that this process may use, within the limits of its control groups."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from hsdag.base.host import PROC, SYS, own_cpus

CONTROL_GROUPS = SYS / "fs" / "cgroup"
OWN_GROUPS = PROC / "self" / "cgroup"

BUSY = 0.25
"""Share of the processors from which on other programs' use falsifies measurements."""

TICKS_S = 0.5
"""Seconds that must pass before the share is reported; until then it is 0, since the system counts in ticks."""


def own_groups_of(controller: str) -> list[Path]:
    """Return the folders of this process's control group and of the groups around it, for versions 1 and 2.

    Version 1 has a folder per controller. Some folders may not exist: a container may see only the root. Empty without
    control groups.
    """
    try:
        memberships = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            folder, relative = CONTROL_GROUPS / controllers, Path(path.lstrip("/"))
            folders += [folder / relative, *(folder / above for above in relative.parents)]
    return folders


def usable_cpus() -> int:
    """Return the number of processors that this process may keep busy, at least 1.

    The smaller of its affinity and of the quotas (``cpu.max`` of version 2, ``cpu.cfs_quota_us`` of version 1; Linux,
    Documentation/scheduler/sched-bwc) of its control group and the groups around it, rounded down.
    """
    quotas = [_quota(group) for group in own_groups_of("cpu")]
    return max(1, int(min([len(own_cpus()), *(quota for quota in quotas if quota is not None)])))


class Seconds(NamedTuple):
    """Processor seconds of all processors that this process may use: passed, worked, and worked for this process."""

    passed: float
    worked: float
    own: float

    @staticmethod
    def now() -> Seconds:
        """Read the seconds since some time in the past; descendants of this process count as its own."""
        cpus = own_cpus()
        times = [each for cpu, each in enumerate(psutil.cpu_times(percpu=True)) if cpu in cpus]
        not_worked = "idle", "iowait", "guest", "guest_nice"  # guests' times are part of others
        idle = sum(getattr(each, name, 0.0) for each in times for name in not_worked)
        me = psutil.Process()
        own = 0.0
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                own += sum(process.cpu_times()[:4])  # with those of children that it waited for
        return Seconds(time.monotonic() * len(times), sum(map(sum, times)) - idle, own)


class OtherPrograms:
    """The share of the processors that other programs take, from now on."""

    def __init__(self, seconds: Callable[[], Seconds] = Seconds.now) -> None:
        self._seconds = seconds
        self._begun = seconds()

    def share(self) -> float:
        """Return the share, between 0 and 1; 0 if hardly any time has passed."""
        passed, worked, own = (now - begun for now, begun in zip(self._seconds(), self._begun, strict=True))
        return min(max((worked - own) / passed, 0.0), 1.0) if passed > TICKS_S else 0.0


def in_parts(run: Callable[[slice], None], count: int, num_parts: int) -> None:
    """Call ``run`` for at most ``num_parts`` consecutive parts of 0 to ``count``, side by side on threads."""
    num_parts = max(1, num_parts)
    bounds = np.linspace(0, count, num_parts + 1).astype(int).tolist()
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    if num_parts == 1:
        run(parts[0])
        return
    with ThreadPoolExecutor(num_parts) as pool:
        list(pool.map(run, parts))


def _quota(group: Path) -> float | None:
    """Return the number of processors that one group allows; None where it has no limit or does not exist."""
    try:
        if (group / "cpu.max").is_file():
            quota_us, period_us = (group / "cpu.max").read_text().split()
        else:
            quota_us = (group / "cpu.cfs_quota_us").read_text().strip()
            period_us = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None
    return None if quota_us in ("max", "-1") else float(quota_us) / float(period_us)


FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files with the limit and use of memory of a control group, of version 2 and of version 1."""


def usable_memory_bytes() -> float:
    """Return the smaller of the machine's available memory and of what the control groups around this process leave.

    File pages that a group could drop do not count as used.
    """
    left_bytes = [_left_bytes(group) for group in own_groups_of("memory")]
    return max(0.0, min([float(psutil.virtual_memory().available), *(left for left in left_bytes if left is not None)]))


def _left_bytes(group: Path) -> float | None:
    """Return the bytes that one group leaves; None where it has no limit or does not exist."""
    for limit, used in FILES:
        try:
            if (group / limit).read_text().strip() == "max":
                return None
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            droppable = float(statistics.get("inactive_file", 0))
            return float((group / limit).read_text()) - float((group / used).read_text()) + droppable
        except OSError:
            continue
    return None
