"""Fixtures of the executor's tests: backends of the engine that are polled or not."""

from __future__ import annotations

import pytest

from tests.hsdag.runtime.executor.hand_backend import HandBackend


@pytest.fixture(params=[None, 0.001], ids=["told", "polled"])
def poll_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float | None:
    """How often backends of tests are polled."""
    monkeypatch.setattr(HandBackend, "poll_s", request.param)
    found: float | None = request.param
    return found
