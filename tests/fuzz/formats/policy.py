"""Policy files: weights for reuse, and the state of a training that was interrupted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hsdag.ir.errors import HsdagError
from hsdag.methods.learned.doppler.placer import stored_policy
from hsdag.methods.lists.rules import read_rules
from hsdag.scoring.policy_file import StateFile, policy_method
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    path = folder / "policy.safetensors"
    with suppress(HsdagError):
        StateFile(path).load()
    if policy_method(path) == "rules":
        read_rules(path)
    else:
        stored_policy(path)


FORMAT = Format(_read)
