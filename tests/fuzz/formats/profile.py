"""Profile files, and the costs that follow from them."""

from __future__ import annotations

from pathlib import Path

from hsdag.runtime.measuring.profile import read_profile, write_profile
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    profile = read_profile(folder / "profile.json")
    profile.costs()
    profile.costs(side_by_side=True)
    profile.op_by_op_costs()
    assert profile.memory_bytes.shape == (len(profile.devices),)
    write_profile(profile, folder / "written.json")


FORMAT = Format(_read)
