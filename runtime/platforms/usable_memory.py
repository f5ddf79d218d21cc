"""The memory that this process may still take: what the machine has available, within its control groups' limits."""

from __future__ import annotations

from pathlib import Path

import psutil

from hsdag.runtime.platforms.control_groups import CONTROL_GROUPS, OWN_GROUPS, own_groups_of

FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and use of a control group, of version 2 and of version 1."""


def usable_memory_bytes(own_groups: Path = OWN_GROUPS, mount: Path = CONTROL_GROUPS) -> float:
    """The least of what the machine has available and what the control group and the groups around it leave.

    File pages that a group could drop do not count as used.
    """
    found = [_left_bytes(group) for group in own_groups_of("memory", own_groups, mount)]
    available = float(psutil.virtual_memory().available)
    return max(0.0, min([available, *(left for left in found if left is not None)]))


def _left_bytes(group: Path) -> float | None:
    """What one group leaves; None where it has no limit or does not exist."""
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
