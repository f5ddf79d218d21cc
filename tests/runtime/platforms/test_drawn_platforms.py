"""Drawn platforms: their devices and links lie in the ranges that are said, and all kinds occur."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.platforms.drawn import BETWEEN_GROUPS, SPREAD, draw_platform
from hsdag.runtime.platforms.platform import Platform

MANY = [draw_platform(np.random.default_rng(seed)) for seed in range(100)]


def peaks(platform: Platform) -> list[float]:
    return [device.peak("f32") for device in platform.devices]


def links(platform: Platform) -> np.ndarray:
    return platform.link_bandwidth_bytes_per_s[~np.eye(platform.num_devices, dtype=np.bool_)]


@given(st.integers(0, 10_000))
def test_devices_and_links_are_at_most_so_many_times_apart(seed: int) -> None:
    platform = draw_platform(np.random.default_rng(seed))
    memory = [device.memory_bandwidth_bytes_per_s for device in platform.devices]
    assert 2 <= platform.num_devices <= 8
    assert max(peaks(platform)) <= SPREAD * min(peaks(platform))
    assert max(memory) <= SPREAD * min(memory)
    assert links(platform).max() <= max(BETWEEN_GROUPS) * links(platform).min() * (1 + 1e-9)
    bandwidth = platform.link_bandwidth_bytes_per_s
    assert np.array_equal(bandwidth, bandwidth.T)


def test_every_number_of_devices_and_devices_of_both_kinds_occur() -> None:
    assert {platform.num_devices for platform in MANY} == set(range(2, 9))
    alike = [len(set(peaks(platform))) == 1 for platform in MANY]
    assert 30 < sum(alike) < 70


def test_links_are_alike_in_two_groups_or_unlike() -> None:
    kinds = [len(set(links(platform))) for platform in MANY if platform.num_devices > 3]
    assert min(kinds.count(1), kinds.count(2), sum(kind > 2 for kind in kinds)) > 10
    for platform in MANY:
        bandwidth = platform.link_bandwidth_bytes_per_s
        if platform.num_devices > 3 and len(set(links(platform))) == 2:
            near = bandwidth >= links(platform).max()
            assert np.array_equal(near, near @ near)  # who is near to one near to me is near to me
