"""The modules beside the tests of the OpenVINO backend can be imported by name; one OpenVINO for all of them."""

from __future__ import annotations

import openvino as ov
import pytest


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """The plain CPU computes in full precision, as the devices of the tests do."""
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core
