"""Profile files: what was measured comes back as it was, with what is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.measuring.profile import (
    Contention,
    DeviceProfile,
    LinkProfile,
    ModelProfile,
    read_profile,
    write_profile,
)

DEVICES = [
    DeviceSpec(name="A", plugin="CPU", properties={"INFERENCE_NUM_THREADS": "1"}),
    DeviceSpec(name="GPU.0", plugin="GPU.0"),
]
TIMES = (
    DeviceProfile(np.array([1e-3, np.nan]), ((0, 1),), None, 0.1, 5, 100, None, 0.5, 0.01, 7, device=DEVICES[0]),
    DeviceProfile(np.array([2e-3, 0.0]), (), 2e-3, 0.0, 9, 0, 1e9, device=DEVICES[1]),
)
SYNC_BYTES = (1e4, 1e6, 2e6)
SYNC_S = np.array([[[np.nan, 1e-4 + 3 * size * 1e-9], [5e-5 - size * 1e-11, np.nan]] for size in SYNC_BYTES])
LINKS = LinkProfile(
    np.array([1e-5, 2e-5]), np.full((2, 2), 3e-6), np.array([[1e9, np.inf], [2e9, 1e9]]), SYNC_BYTES, SYNC_S
)
UNKNOWN = np.full((2, 2), np.nan)
CONTENTION = Contention({"compute": UNKNOWN, "memory": UNKNOWN, "model": np.array([[np.nan, 2.0], [np.nan, np.nan]])})
FULL = ModelProfile(devices=TIMES, links=LINKS, contention=CONTENTION)


def test_every_figure_of_a_profile_comes_back(tmp_path: Path) -> None:
    write_profile(FULL, tmp_path / "profile.json")
    found = read_profile(tmp_path / "profile.json")
    np.testing.assert_equal([vars(times) for times in found.times], [vars(times) for times in TIMES])
    np.testing.assert_equal(vars(found.links), vars(LINKS))
    assert found.contention is not None
    np.testing.assert_equal(vars(found.contention), vars(CONTENTION))


def test_syncs_are_a_launch_and_bytes_neither_of_them_negative() -> None:
    assert LINKS.syncs is not None
    launch_s, per_byte = LINKS.syncs
    np.testing.assert_allclose(launch_s, [[np.nan, 1e-4], [5e-5 - 1e-7, np.nan]], rtol=1e-6)
    np.testing.assert_allclose(per_byte, [[np.nan, 1e-9], [0.0, np.nan]], rtol=1e-6, atol=1e-20)
    steep = replace(LINKS, sync_s=np.array([0.0, 3e-3, 9e-3])[:, None, None]).syncs
    assert steep is not None
    np.testing.assert_allclose(steep[1], (3e-3 / 2.97e6 + 6e-3 / 3e6) / 2)
    assert steep[0].tolist() == [[0.0]]
    assert replace(LINKS, sync_s=None).syncs is None


def test_what_files_of_earlier_versions_have_besides_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(FULL, path)
    document = json.loads(path.read_text())
    assert "box" not in document["devices"][1]
    document["devices"][1]["box"] = "anna"
    for name in ("sync_bytes", "sync_s"):
        del document["links"][name]
    document["links"]["shared"] = [[[None, 1.0], [1.0, None]]] * 3
    document["contention"]["least"] = document["contention"]["factor"]
    path.write_text(json.dumps(document))
    assert read_profile(path).times[1].latency_s == FULL.times[1].latency_s


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (("devices", 0, "time_s"), [-1.0, 0.0], r"devices\[0\]\.time_s\[0\]"),
        (("links", "launch_s"), [1e-5], r"links\.launch_s: one entry is expected for each of 2 devices"),
        (("links", "launch_s"), [1e-5] * 3, r"links\.launch_s: one entry"),
        (("links", "latency_s"), [[0.0]], r"links\.latency_s: one entry"),
        (("links", "bandwidth_bytes_per_s"), [[1.0, 1.0]], r"links\.bandwidth_bytes_per_s: one entry"),
        (("links", "bandwidth_bytes_per_s"), [[1.0, 0.0], [1.0, 1.0]], "every bandwidth must be above 0"),
        (("links", "sync_s"), [[[1.0]]], r"links\.sync_s: one entry"),
        (("links", "sync_bytes"), [1.0], r"links\.sync_bytes: two sizes at least"),
        (("links", "sync_bytes"), [1.0, 2.0, 2.0], r"links\.sync_bytes: two sizes at least"),
        (("links", "sync_bytes"), [1.0, 2.0], r"links\.sync_s: one entry"),
        (("contention", "factor", "model"), [[1.0]], r"contention\.factor\.model: one entry"),
        (("contention", "factor"), {"model": [[1.0]]}, "contention.factor: it needs the kinds compute, memory, model"),
        (("devices", 1, "time_s"), [1.0], "every time_s needs 2 entries"),
        (("devices", 0, "fused"), [[0, 2]], "fused may name ops up to 1"),
        (("devices", 1, "device", "name"), "A", "two have the same name"),
    ],
)
def test_columns_and_tables_of_other_lengths_are_refused(
    at: tuple[str | int, ...], value: object, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    write_profile(FULL, path)
    document = json.loads(path.read_text())
    place = document
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=rf"profile\.json: .*{reason}"):
        read_profile(path)


def test_the_models_own_slow_down_counts_where_it_is_known_else_the_mean_of_both_small_ones_and_none_in_doubt() -> None:
    of_model, compute, memory = UNKNOWN.copy(), UNKNOWN.copy(), UNKNOWN.copy()
    of_model[0, 1], compute[1, 0], memory[1, 0] = 2.0, 1.7, 3.0
    found = Contention({"compute": compute, "memory": memory, "model": of_model})
    assert found.slowdown.tolist() == [[1.0, 2.0], [(1.7 + 3.0) / 2, 1.0]]
    np.testing.assert_array_equal(replace(found, is_disturbed=True).slowdown, [[1.0, np.nan], [np.nan, 1.0]])


@pytest.mark.parametrize(
    ("by_op", "time_s", "launch_s"), [(False, [[4.8, 0.9], [3.2, 0]], [2, 9]), (True, [[6, 9], [4, 0]], [0, 0])]
)
def test_the_one_launch_in_a_models_latency_is_taken_out_of_its_ops_or_paid_at_crossings(
    by_op: bool, time_s: list[list[float]], launch_s: list[float]
) -> None:
    """At most nine tenths of a latency are taken for its launch, and what no device runs takes nothing."""
    ops_s, specs = np.array([[6.0, 9.0], [4.0, np.nan], [np.nan, np.nan]]), [DeviceSpec(name, "CPU") for name in "AB"]
    times = tuple(DeviceProfile(ops_s[:, d], (), None, 0.0, 1, 0, 8e9, device=specs[d]) for d in range(2))
    links = LinkProfile(np.array([2.0, 9.0]), np.full((2, 2), 1.0), np.ones((2, 2)))
    profile = ModelProfile(devices=times, links=links)
    costs = profile.costs(graph_from_edges(["Relu"] * 3, []), by_op=by_op)
    np.testing.assert_allclose(np.nan_to_num(costs.time_s), [[*time_s[0]], [*time_s[1]], [0.0, 0.0]])
    assert np.isnan(costs.time_s).tolist() == [[False, False], [False, True], [False, False]]
    assert costs.launch_s.tolist() == launch_s
    assert costs.link_latency_s[[0, 1], [1, 0]].tolist() == ([10.0, 3.0] if by_op else [1.0, 1.0])
    assert costs.slowdown is None
    assert profile.memory_bytes.tolist() == [4e9, 4e9]  # devices over the CPU plugin share the machine's
    assert FULL.memory_bytes.tolist() == [np.inf, 1e9]


def test_a_graph_with_another_number_of_ops_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \(3, 2\), not \(2, 2\)"):
        FULL.costs(graph_from_edges(["Relu"] * (len(FULL.times[0].time_s) + 1), []))
