"""Platform files: what is read, and what is wrong with what is not; platforms drawn at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError
from hsdag.runtime.platforms.platform import list_platforms, load_platform, op_class

MINIMAL = """
format = "hsdag-platform"
version = 1
name = "small"
description = "Two devices."

[[devices]]
names = ["a", "b"]
kind = "cpu"
peak_flops_per_s = { f32 = 1e12 }
memory_bandwidth_bytes_per_s = 1e11
memory_bytes = 1e9
launch_s = 0
op_overhead_s = 0
memory_efficiency = 1
efficiency = { convolution = 1, product = 1, elementwise = 1, movement = 1, other = 1 }

[links]
latency_s = 1e-6
bandwidth_bytes_per_s = 1e10
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", list_platforms())
def test_every_shipped_platform_is_physically_sane(name: str) -> None:
    platform = load_platform(name)
    off = ~np.eye(platform.num_devices, dtype=np.bool_)
    assert platform.name == name
    slowest_memory = min(device.memory_bandwidth_bytes_per_s for device in platform.devices)
    assert platform.link_bandwidth_bytes_per_s[off].min() > 1e9
    assert platform.link_bandwidth_bytes_per_s[off].max() <= slowest_memory
    assert 1e-7 <= platform.link_latency_s[off].min() <= platform.link_latency_s[off].max() <= 1e-3


def test_the_eight_v100s_are_two_cliques_with_four_links_between() -> None:
    bandwidth = load_platform("v100x8").link_bandwidth_bytes_per_s
    fast = bandwidth == bandwidth[0, 1]
    assert np.array_equal(bandwidth, bandwidth.T)
    assert fast[:4, :4].sum() == fast[4:, 4:].sum() == 4 * 3
    assert fast[:4, 4:].sum() == 4
    assert np.all(fast[:4, 4:].sum(axis=0) == 1)


def test_later_links_override_earlier_ones_for_the_pairs_they_name(tmp_path: Path) -> None:
    entry = '[[links.between]]\ndevices = ["a"]\nand_devices = ["b"]\n'
    both = load_platform(write(tmp_path, MINIMAL + entry + "latency_s = 5e-6"))
    one = load_platform(write(tmp_path, MINIMAL + entry + "latency_s = 5e-6\none_way = true"))
    assert both.link_latency_s.tolist() == [[0.0, 5e-6], [5e-6, 0.0]]
    assert one.link_latency_s.tolist() == [[0.0, 5e-6], [1e-6, 0.0]]
    assert one.link_bandwidth_bytes_per_s[0, 1] == 1e10


MISTAKES = {
    "small.toml: devices[0].nick: Extra inputs": ("kind =", "nick = 1\nkind ="),
    "small.toml: devices[0].memory_bytes: Input should be greater than 0": ("memory_bytes = 1e9", "memory_bytes = -1"),
    "small.toml: devices[0].launch_s: Input should be a valid number": ("launch_s = 0", 'launch_s = "0"'),
    "small.toml: devices[0].efficiency.other: Input should be less than or equal to 1": ("other = 1", "other = 2"),
    "small.toml: devices[0].efficiency.nick: Input should be 'convolution', 'product'": ("other = 1", "nick = 1"),
    "small.toml: devices[0].efficiency: no figure for other": (", other = 1", ""),
    "small.toml: devices[0].peak_flops_per_s: no figure for f32": ("f32 = 1e12", "f16 = 1e12"),
    "small.toml: devices[0].names[1]: 'a' is already the name": ('["a", "b"]', '["a", "a"]'),
    "small.toml: links: Field required": ("[links]\nlatency_s = 1e-6\nbandwidth_bytes_per_s = 1e10\n", ""),
    "small.toml: not TOML": ("[links]", "[links"),
    "small.toml: format: ": ("hsdag-platform", "hsdag-problem"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_answered_with_file_and_key(tmp_path: Path, message: str) -> None:
    path = write(tmp_path, MINIMAL.replace(*MISTAKES[message]))
    with pytest.raises(FileFormatError) as caught:
        load_platform(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CALIBRATION_OF_X = """
[calibration]
provenance = "p"
[calibration.devices.x]
op_overhead_s = 0
launch_s = 0
op_time = { convolution = 1, product = 1, elementwise = 1, movement = 1, other = 1 }
"""
ABSENT = {
    r"links\.between\[0\]\.devices\[1\]: there is no device 'x'": '[[links.between]]\ndevices = ["a", "x"]',
    r"calibration\.devices.*no device 'x'; the devices are a, b": CALIBRATION_OF_X,
}


@pytest.mark.parametrize("message", ABSENT)
def test_an_absent_device_is_named_beside_those_there_are(tmp_path: Path, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        load_platform(write(tmp_path, MINIMAL + ABSENT[message]))


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(FileFormatError, match=r"'p100x5', perhaps 'p100x4'; choose one of h200, .*v100x8"):
        load_platform("p100x5")


def test_a_precision_without_a_figure_runs_at_the_next_wider_ones_peak(tmp_path: Path) -> None:
    device = load_platform(write(tmp_path, MINIMAL.replace("f32 = 1e12", "f32 = 1e12, f16 = 3e12"))).devices[0]
    assert [device.peak(p) for p in ("f32", "f16", "i8")] == [1e12, 3e12, 3e12]


def test_op_types_fall_into_the_classes_that_files_name() -> None:
    types = ("GroupConvolution", "MatMul", "Relu", "Concat", "MaxPool", "NobodyKnows")
    assert [op_class(t).value for t in types] == [
        "convolution", "product", "elementwise", "movement", "other", "other",
    ]  # fmt: skip
