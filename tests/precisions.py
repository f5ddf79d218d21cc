"""Which precisions tests can use here."""

from __future__ import annotations

import openvino as ov
import pytest

needs_bf16 = pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="this CPU computes nothing in bf16: OpenVINO says so of those without AVX-512",
)
