"""Fixtures of the executor's tests: one OpenVINO for all of them; tests of the engine take ``is_helped`` both ways."""

from __future__ import annotations

import openvino as ov
import pytest

from hsdag.runtime.executor import NullBackend
from tests.runtime.executor.hand_backend import BrokenBackend, HandBackend


@pytest.fixture(params=[False, True], ids=["own-thread", "helped"])
def is_helped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether backends of tests want help."""
    for backend in (NullBackend, BrokenBackend, HandBackend):
        monkeypatch.setattr(backend, "is_helped", request.param)
    return bool(request.param)


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """The plain CPU computes in full precision, as the devices of the tests do."""
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core
