"""Links between devices, from probes with known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.measuring.messages import Probed
from hsdag.runtime.measuring.profile import DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.measuring.profiler import fit_link


def test_an_executor_that_starts_every_op_pays_a_launch_at_crossings_alone() -> None:
    ops_s = np.array([[1e-3, 2e-3], [3e-3, 5e-3]])
    devices = [DeviceSpec(name=name, plugin="cpu") for name in "AB"]
    times = tuple(DeviceProfile(ops_s[:, d], (), None, 0.0, 3, 0, None, device=devices[d]) for d in range(2))
    links = LinkProfile(np.array([1e-4, 2e-4]), np.full((2, 2), 1e-5), np.full((2, 2), 1e9))
    costs = ModelProfile(devices=times, links=links).costs(graph_from_edges(["Relu"] * 2, []), by_op=True)
    assert costs.time_s.tolist() == ops_s.tolist()
    assert costs.launch_s.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(costs.link_latency_s[[0, 1], [1, 0]], [1e-5 + 2e-4, 1e-5 + 1e-4])


SIZES = [(1, 4096), (1, 1 << 20), (4, 4096), (4, 1 << 19)]


def crossings(launch_s: float, latency_s: float, per_byte_s: float) -> list[Probed]:
    return [Probed(1e-5 + launch_s + n * (latency_s + size * per_byte_s), 1e-6, size) for n, size in SIZES]


ALONE = [Probed(1e-5, 1e-6, size) for _, size in SIZES]


def test_a_fit_finds_launch_latency_and_bandwidth() -> None:
    truth = (2e-4, 3e-5, 1 / 5e9)
    found = fit_link(SIZES, ALONE, ALONE, crossings(*truth))
    assert found is not None
    assert found == pytest.approx(truth, rel=1e-3)


def test_a_link_that_ran_too_few_probes_has_no_fit() -> None:
    assert fit_link(SIZES[:3], ALONE[:3], ALONE[:3], [None, *ALONE[1:3]]) is None


def collapses(probes: list[Probed]) -> bool:
    found = fit_link(SIZES, ALONE, ALONE, probes)
    assert found is not None
    return found[0] == 0 or found[1] == 0


def test_one_noisy_probe_does_not_take_a_links_launch_or_latency_away() -> None:
    """40 us of noise on one probe: 14% of fits lose one or both where all probes are weighed alike, 1% otherwise."""
    rng, weighed, alike = np.random.default_rng(0), 0, 0
    for _ in range(300):
        probes, noisy = crossings(5e-5, 1e-5, 1 / 5e9), int(rng.integers(len(SIZES)))
        rest_s = probes[noisy].rest_s + 4e-5 * float(rng.standard_normal())
        probes[noisy] = replace(probes[noisy], rest_s=rest_s, error_s=4e-5)
        weighed += collapses(probes)
        alike += collapses([replace(probe, error_s=1e-6) for probe in probes])
    assert alike > 30
    assert weighed < 6
