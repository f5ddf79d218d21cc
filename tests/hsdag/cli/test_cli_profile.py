"""``hsdag profile``: what its tables show of a profile that is known."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.cli.profile import show_profile
from hsdag.profiling import HeavyOp, ProfiledDevice, ProfiledLinks, ProfileResult
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

A = ProfiledDevice(
    name="A", latency_s=None, spread=0.05, runs=3, compile_s=1.5, first_s=0.002, resident_bytes=10_000_000,
    device_bytes=None, memory_bytes=None, launch_s=2e-6, unsupported_ops=1, wins=7, saved_s=0.001,
)  # fmt: skip
B = A.model_copy(update={"name": "B", "latency_s": 0.004, "device_bytes": 5_000_000, "memory_bytes": 2e9})
LINKS = ProfiledLinks(latency_s=[[None, 1e-6], [2e-6, None]], bandwidth_bytes_per_s=[[None, 1e9], [None, None]])
HEAVY = HeavyOp(name="conv", type="Convolution", fused_ops=2, time_s={"B": 0.003}, best=None, share=0.5)


def shown(capsys: pytest.CaptureFixture[str], devices: list[ProfiledDevice]) -> list[str]:
    """The lines of a profile without their columns' widths."""
    result = ProfileResult(
        source="measured", devices=devices, links=LINKS, slowdown={"compute": [[None, 1.5], [2.0, None]]}, ops=9,
        units=4, heaviest=[HEAVY, HEAVY], schedule=ScheduleProblem.from_arrays(np.ones((1, 2)), []),
    )  # fmt: skip
    show_profile(result, 1)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_tables_show_devices_pairs_and_the_heaviest_ops(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, [A, B])
    for expected in (
        "A - 5.0% 3 2 1.5 2 10 - - 1",
        "B 4 5.0% 3 2 1.5 2 10 5 2.0 1",
        "A -> B 1 1",
        "B -> A 2 -",
        "A beside B 1.50",
        "B beside A 2.00",
        "the 1 heaviest of 2, each computed as one",
        "conv Convolution 2 - 3 - 50.0%",
        "A 7 1",
    ):
        assert lines.count(expected) == 1, expected
    assert lines[-1] == "9 ops in 4 placement units"
    assert not [line for line in shown(capsys, [A]) if line.startswith("link")]
