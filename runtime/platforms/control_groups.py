"""Control groups of Linux: the folders that hold the limits of this process."""

from __future__ import annotations

from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def own_groups_of(controller: str, own_groups: Path = OWN_GROUPS, mount: Path = CONTROL_GROUPS) -> list[Path]:
    """The folders of this process's group and of the groups around it, of version 2 and of a version 1 controller.

    Some may not exist: a container may see only the root. Empty where there are no control groups.
    """
    try:
        memberships = own_groups.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            folder, relative = mount / controllers, Path(path.lstrip("/"))
            found += [folder / relative, *(folder / above for above in relative.parents)]
    return found
