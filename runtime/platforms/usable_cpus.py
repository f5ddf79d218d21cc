"""The processors that this process may use: its affinity, within the CPU quotas of its control groups."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hsdag.runtime.platforms.control_groups import CONTROL_GROUPS, OWN_GROUPS, own_groups_of


def usable_cpus(own_groups: Path = OWN_GROUPS, mount: Path = CONTROL_GROUPS) -> int:
    """How many processors this process may keep busy, at least 1.

    The smaller of its affinity and of the quotas (``cpu.max`` of version 2, ``cpu.cfs_quota_us`` of version 1; Linux,
    Documentation/scheduler/sched-bwc) of its control group and the groups around it, rounded down.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [_quota(group) for group in own_groups_of("cpu", own_groups, mount)]
    return max(1, int(min([affinity, *(quota for quota in found if quota is not None)])))


def in_parts(run: Callable[[slice], None], count: int, num_parts: int) -> None:
    """Have ``run`` do 0 to ``count``, at most so many consecutive parts of it side by side on threads."""
    num_parts = max(1, num_parts)
    bounds = np.linspace(0, count, num_parts + 1).astype(int).tolist()
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    if num_parts == 1:
        run(parts[0])
        return
    with ThreadPoolExecutor(num_parts) as pool:
        list(pool.map(run, parts))


def _quota(group: Path) -> float | None:
    """The processors that one group allows; None where it has no limit or does not exist."""
    try:
        if (group / "cpu.max").is_file():
            quota_us, period_us = (group / "cpu.max").read_text().split()
        else:
            quota_us = (group / "cpu.cfs_quota_us").read_text().strip()
            period_us = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None
    return None if quota_us in ("max", "-1") else float(quota_us) / float(period_us)
