"""Links between devices, and how the work-conserving executor hands tensors over, from probes with known answers."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from hsdag.ir import DeviceSpec, parse_devices
from hsdag.runtime.measuring.messages import Probe, Probed
from hsdag.runtime.measuring.probes import handing_over
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.profiling.links import measure_hand_overs
from hsdag.runtime.profiling.profile import DeviceProfile, LinkProfile, ModelProfile

DEVICES = (DeviceSpec("CPU", "CPU"), DeviceSpec("GPU.0", "GPU.0"))
TRUTH = {"ordinary": (2e-4, 3e-5, 1 / 2e9), "shared": (1e-4, 2e-5, 1 / 8e9)}


def answer(names: tuple[str, ...], kind: str, tensors: int, size_bytes: int, way: str = "hetero") -> Probed | None:
    """What a machine would answer on which hand-overs take TRUTH, twice that from a GPU; nothing is shared with it."""
    assert kind == "elementwise"
    if len(names) == 1:
        return Probed(1e-5, 1e-7, size_bytes)
    if names == ("GPU.0", "GPU.0") and way == "shared":
        return None
    launch_s, latency_s, s_per_byte = TRUTH[way]
    extra_s = launch_s + tensors * (latency_s + size_bytes * s_per_byte)
    return Probed(1e-5 + extra_s * (1 + (names[0] == "GPU.0")), 1e-7, size_bytes)


@pytest.fixture(scope="module")
def handed() -> dict[str, np.ndarray]:
    return {way: np.array(table) for way, table in measure_hand_overs(answer, DEVICES).items()}


def test_hand_overs_are_known_by_pair_direction_and_way_where_a_gpu_takes_part(handed: dict[str, np.ndarray]) -> None:
    for way, table in handed.items():
        assert np.isnan(table[:, 0, 0]).all()
        assert table[:, 0, 1] == pytest.approx(TRUTH[way], rel=1e-3)
        assert table[:, 1, 0] == pytest.approx(2 * np.array(TRUTH[way]), rel=1e-3)
    assert np.isfinite(handed["ordinary"][:, 1, 1]).all()
    assert np.isnan(handed["shared"][:, 1, 1]).all()


def test_the_executors_links_are_shared_ones_then_ordinary_ones_then_heteros(handed: dict[str, np.ndarray]) -> None:
    hetero = LinkProfile(np.array([7.0, 8.0]), np.full((2, 2), 9.0), np.full((2, 2), 10.0), **handed)
    own = hetero.side_by_side()
    assert own.latency_s[0, 0] == 9.0
    assert own.bandwidth_bytes_per_s[0, 0] == 10.0
    assert own.latency_s[0, 1] == pytest.approx(2e-5, rel=1e-3)
    assert own.bandwidth_bytes_per_s[1, 0] == pytest.approx(4e9, rel=1e-3)
    assert own.latency_s[1, 1] == pytest.approx(6e-5, rel=1e-3)
    assert own.launch_s == pytest.approx([2e-4, 0.5 * (1e-4 + 4e-4)], rel=1e-3)


@pytest.mark.parametrize("kind", ["image", "matrix", "elementwise"])
def test_what_one_request_writes_is_what_the_other_reads(kind: str) -> None:
    specs = parse_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]")
    core, what = make_core(specs), Probe(("CPU_A", "CPU_B"), kind, 3, 1 << 12, 1, 0.0, "ordinary")
    made = handing_over(core, specs, what)
    assert made is not None
    (writer, reader), infer = made
    writer.get_input_tensor(0).data[...] = 2.0
    infer()
    assert np.allclose(reader.get_output_tensor(0).data, 6.0)  # three products with 1, added up


def test_cpu_devices_have_no_memory_that_spares_copies() -> None:
    what = Probe(("CPU", "CPU"), "matrix", 1, 1 << 12, 1, 0.0, "shared")
    assert handing_over(ov.Core(), (DEVICES[0],), what) is None


def test_an_executor_that_starts_every_op_pays_a_launch_at_crossings_alone() -> None:
    ops_s = np.array([[1e-3, 2e-3], [3e-3, 5e-3]])
    times = tuple(DeviceProfile(ops_s[:, d], (), None, 0.0, 3, 0, None) for d in range(2))
    links = LinkProfile(np.array([1e-4, 2e-4]), np.full((2, 2), 1e-5), np.full((2, 2), 1e9))
    specs = (DeviceSpec("A", "cpu"), DeviceSpec("B", "cpu"))
    costs = ModelProfile(specs, times, links).op_by_op_costs()
    assert costs.time_s.tolist() == ops_s.tolist()
    assert costs.launch_s.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(costs.link_latency_s[[0, 1], [1, 0]], [1e-5 + 2e-4, 1e-5 + 1e-4])
