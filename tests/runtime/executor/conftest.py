"""Every test of the engine runs twice: its own thread does all the work, or those who report endings help."""

from __future__ import annotations

import pytest

from hsdag.runtime.executor import NullBackend
from tests.runtime.executor.hand_backend import BrokenBackend, HandBackend


@pytest.fixture(params=[False, True], ids=["own-thread", "helped"], autouse=True)
def is_helped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether backends of tests want help."""
    for backend in (NullBackend, BrokenBackend, HandBackend):
        monkeypatch.setattr(backend, "is_helped", request.param)
    return bool(request.param)
