"""Profiles of real devices and of workers with known answers, links by probes, and the cache they are kept in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hsdag.base.errors import DeviceError
from hsdag.base.processes import CandidateFailed, WorkerClient
from hsdag.commands.place.session import Session
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.device_profiler import FIGURES
from hsdag.runtime.measuring.effort import Effort, ProfilingRun
from hsdag.runtime.measuring.messages import Beside, Call, Candidate, Opened, Probed, WorkerSetup
from hsdag.runtime.measuring.pair_profiler import SYNC_BYTES, by_pair, fit_link
from hsdag.runtime.measuring.profile import KINDS, DeviceProfile, ModelProfile
from hsdag.runtime.measuring.profiler import Profiler
from hsdag.runtime.measuring.windows import AGREEING, CHECKING
from hsdag.runtime.measuring.worker import Worker

THREE = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS={i + 1}]") for i in range(3))
PARTS = THREE[:2]
QUICK = Effort(runs=4, limit_s=0.5, probe_runs=5, probe_limit_s=0.05, most_windows=3)


@pytest.mark.slow
def test_a_profile_of_real_devices_adds_up_to_the_latency_of_the_model_and_keeps_fused_ops_together(
    tiny_resnet: Path,
) -> None:
    with Session(tiny_resnet, DeviceSet(PARTS, ())) as session:
        profile = session.profile(ProfileCache(None), QUICK, side_by_side=True)
    types = [{session.graph.op_types[v] for v in ops} for ops in profile.times[0].fused]
    assert any({"Convolution", "Relu"} <= found for found in types)
    problem = session.problem(profile=profile)
    assert problem.costs is not None
    assert all(len(set(problem.units.partition.labels[list(ops)].tolist())) == 1 for ops in profile.fused)
    for d, device in enumerate(profile.times):
        assert device.time_s.min() >= 0
        assert device.time_s.sum() == pytest.approx(device.latency_s)
        assert problem.costs.time_s[:, d].sum() + problem.costs.launch_s[d] == pytest.approx(device.latency_s)
    assert profile.contention is not None
    assert all(profile.contention.factor[kind][[0, 1], [1, 0]].min() >= 1.0 for kind in KINDS)
    syncs, costs = profile.links.syncs, session.model.costs(profile, "work-conserving").costs
    assert syncs is not None
    assert (np.isnan(syncs) == np.eye(2, dtype=np.bool_)).all()
    assert np.nanmin(syncs) >= 0
    np.testing.assert_allclose(costs.launch_s, np.nanmean(syncs[0], axis=0))


def profiler_of(
    answer: Callable[[Call[Any]], Any],
    *types: str,
    cache: ProfileCache | None = None,
    edges: list[tuple[int, int]] | None = None,
    **how: Any,
) -> Profiler:
    """Of a model of ops in a chain, or with other edges, in a worker that gives these answers."""
    client = cast("WorkerClient", SimpleNamespace(call=lambda request, *_: answer(request)))
    chain = [(v, v + 1) for v in range(len(types) - 1)]
    flops = [float(kind == "MatMul") for kind in types]
    graph = graph_from_edges(list(types), chain if edges is None else edges, flops=flops)
    how = {"effort": QUICK, **how}
    return Profiler(ProfilingRun(client, graph, "digest", cache or ProfileCache(None), **how))


def times_of(*primitives: tuple[list[int], float]) -> dict[str, Any]:
    """What a worker answers of a device on which primitives of ops take so long, the whole model 1 s."""
    rows = [[ops, seconds, 0, ""] for ops, seconds in primitives]
    return {"primitives": rows, "latency_s": 1.0, **dict.fromkeys(FIGURES)}


def crashes(_: object) -> None:
    raise CandidateFailed("the worker was ended by SIGSEGV")


def device(profiler: Profiler, d: int = 0, carriers: list[int] | None = None) -> DeviceProfile:
    return profiler.devices.profile(PARTS, np.array(carriers or [d] * profiler._run.graph.num_ops), d)


@pytest.mark.parametrize(
    ("types", "edges", "primitives", "time_s", "fused"),
    [
        ("Sin MatMul", None, [([0], 1.0), ([1], 3.0)], [0.25, 0.75], ()),
        ("Sin MatMul Sin", None, [([0], 0.0), ([1], 0.0)], [0.0, 1.0, 0.0], ()),  # below the counters' resolution
        ("Sin Sin", None, [([0, 1], 2.0)], [1.0, 0.0], ((0, 1),)),
        ("Sin MatMul", None, [([0, 1], 2.0)], [0.0, 1.0], ((0, 1),)),  # to the heaviest
        ("Constant MatMul", None, [([0, 1], 2.0)], [0.0, 1.0], ()),
        ("MatMul Add", None, [([1], 2.0)], [1.0, 0.0], ((1, 0),)),  # the sum alone may be named
        ("MatMul Add", None, [([0], 1.0), ([1], 3.0)], [0.25, 0.75], ()),
        ("Sin Add", None, [([1], 2.0)], [0.0, 1.0], ()),
        ("MatMul Add Sin", [(0, 1), (0, 2)], [([1], 1.0), ([2], 3.0)], [0.0, 0.25, 0.75], ()),
    ],
)
def test_what_a_primitive_takes_stands_at_one_of_its_ops(
    types: str,
    edges: list[tuple[int, int]] | None,
    primitives: list[tuple[list[int], float]],
    time_s: list[float],
    fused: tuple[tuple[int, ...], ...],
) -> None:
    found = device(profiler_of(lambda _: times_of(*primitives), *types.split(), edges=edges))
    assert (found.time_s.tolist(), found.fused, found.latency_s) == (time_s, fused, 1.0)


def test_what_was_profiled_in_this_run_is_not_said_to_be_of_an_earlier_one(tmp_path: Path) -> None:
    alike = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1]") for i in range(2))
    for first in ("profiling P0", "P0 was profiled in an earlier run; fresh measures it again"):
        said = list[str]()
        profiler = profiler_of(lambda _: times_of(([0], 1.0)), "Sin", cache=ProfileCache(tmp_path), on_step=said.append)
        for d in range(2):
            profiler.devices.profile(alike, np.array([d]), d)
        assert said == [first, "P1 is like P0, so its profile is the same"]


def test_ops_that_another_device_carries_have_no_time_and_a_part_of_a_model_has_no_latency(tmp_path: Path) -> None:
    profiler = profiler_of(lambda _: times_of(([0], 1.0), ([1], 3.0)), "Sin", "Sin", cache=ProfileCache(tmp_path))
    assert device(profiler).latency_s == 1.0
    found = device(profiler, carriers=[0, 1])
    assert len(list(tmp_path.glob("*.json"))) == 2
    np.testing.assert_array_equal(found.time_s, [0.25, np.nan])
    assert found.latency_s is None
    still = device(profiler_of(lambda _: times_of(([0], 0.0)), "Sin", "Sin"), carriers=[0, 1])
    np.testing.assert_array_equal(still.time_s, [1.0, np.nan])  # what the counters are too coarse for


def machine(slowdowns: Iterable[float], asked: list[str], whole_s: float = 0.55) -> Callable[[Call[Any]], Any]:
    """A worker on a machine whose devices take 1 s, and these times as long side by side, window by window.

    All of its threads together take ``whole_s``.
    """
    each = iter(slowdowns)

    def answer(request: Call[Any]) -> Any:
        if request.name == "contention":
            asked.append(request.args[1])
            slow = next(each) if request.args[1] == "model" else 1.1
            return Beside((1.0, 1.0), ((0.0, slow), (slow, 0.0)), (whole_s,) * len(request.args[2]))
        if request.name == "probe":
            return Probed(1e-5, 1e-6, 4096)
        return {"sync": 1e-4, "op_times": {**times_of(([0], 1.0)), "compile_s": 0.0}}.get(request.name)

    return answer


WHOLE = DeviceSpec("CPU", "CPU")


def profiled(answer: Callable[[Call[Any]], Any], cache: ProfileCache, **how: Any) -> ModelProfile:
    effort = replace(QUICK, total_s=1e9, most_windows=10)
    profiler = profiler_of(answer, "Relu", cache=cache, effort=effort, **how)
    return profiler.profile(PARTS, np.array([[0, 1]]), side_by_side=True, whole_devices=[WHOLE])


def slowdown_of(profile: ModelProfile) -> float:
    assert profile.contention is not None
    return float(np.nan_to_num(profile.contention.slowdown[0, 1]))


@pytest.mark.parametrize(
    ("slowdowns", "found", "num", "is_kept"),
    [
        ([1.05] * 3, 1.05, 3, True),
        ([1.9] * 4 + [1.05] * 3, 1.05, 7, True),  # a bad minute ends
        ([1.9] * 10, 0.0, 10, False),  # or does not: nothing is believed
    ],
)
def test_a_slow_down_that_contradicts_small_models_is_measured_again_and_not_kept_in_doubt(
    slowdowns: list[float], found: float, num: int, is_kept: bool, tmp_path: Path
) -> None:
    asked, steps = list[str](), list[str]()
    profile = profiled(machine(slowdowns, asked), ProfileCache(tmp_path), on_note=steps.append)
    assert slowdown_of(profile) == found
    assert asked.count("model") == num
    doubt = "measurements of devices side by side do not agree with each other; they are not kept"
    assert (doubt in steps) is not is_kept
    asked.clear()
    assert slowdown_of(profiled(machine([1.05] * 9, asked), ProfileCache(tmp_path))) == 1.05
    assert asked.count("model") == (CHECKING if is_kept else AGREEING)


def test_a_slow_down_that_was_written_into_the_cache_is_noticed_and_measured_again(tmp_path: Path) -> None:
    profiled(machine([1.05] * 3, []), ProfileCache(tmp_path))
    written = [path for path in tmp_path.iterdir() if '"side by side"' in path.read_text()]
    document = json.loads(written[0].read_text())
    document["value"]["figures"][KINDS.index("model")] = [[None, 2.0], [2.0, None]]
    written[0].write_text(json.dumps(document))
    steps = list[str]()
    assert slowdown_of(profiled(machine([1.05] * 9, []), ProfileCache(tmp_path), on_note=steps.append)) == 1.05
    assert "what was kept of devices side by side is not what is measured now; measuring it again" in steps
    assert json.loads(written[0].read_text())["value"]["figures"][KINDS.index("model")] == [[None, 1.05], [1.05, None]]


@pytest.mark.parametrize(("total_s", "found"), [(9.0, 1.1), (4.5, 0.0)])  # the latter ends in the third window
def test_what_small_models_refute_is_forgotten_where_there_is_no_time_for_the_model(
    total_s: float, found: float, tmp_path: Path
) -> None:
    profiled(machine([1.05] * 3, []), ProfileCache(tmp_path))
    (written,) = (path for path in tmp_path.iterdir() if '"side by side"' in path.read_text())
    written.write_text(written.read_text().replace("1.05", "2.0"))
    now_s, asked = 100.0, list[str]()
    moderate = machine([1.05] * 9, asked)

    def answer(request: Call[Any]) -> Any:
        nonlocal now_s
        now_s += request.name == "contention"
        return moderate(request)

    how: dict[str, Any] = {"effort": replace(QUICK, total_s=total_s, most_windows=10), "clock": lambda: now_s}
    profiler = profiler_of(answer, "Relu", cache=ProfileCache(tmp_path), **how)
    assert slowdown_of(profiler.profile(PARTS, np.array([[0, 1]]), side_by_side=True, whole_devices=[WHOLE])) == found
    assert "model" not in asked
    assert written.exists() is (found > 0)
    assert not written.exists() or "2.0" not in written.read_text()


def test_a_latency_of_a_bad_moment_gives_way_to_that_of_windows(tmp_path: Path) -> None:
    def answer(request: Call[Any]) -> Any:
        found = machine([1.05] * 9, [])(request)
        return {**found, "latency_s": 1.9} if request.name == "op_times" else found

    for _ in range(2):
        profile = profiled(answer, ProfileCache(tmp_path))
        assert [times.latency_s for times in profile.times] == [1.0, 1.0]
        assert profile.times[0].time_s.sum() == pytest.approx(1.0)
    assert device(profiler_of(crashes, "Relu", cache=ProfileCache(tmp_path))).latency_s == 1.0


def test_a_model_that_is_too_slow_for_the_time_is_not_run_side_by_side() -> None:
    """Three windows of two devices alone and beside each other, and of the whole: 21 s of a model of 1 s."""
    for total_s, kinds in ((21.0, set(KINDS)), (20.9, {"compute", "memory"})):
        asked = list[str]()
        effort = replace(QUICK, total_s=total_s, most_windows=10)
        profiler = profiler_of(machine([1.05] * 9, asked), "Relu", effort=effort, clock=lambda: 100.0)
        profile = profiler.profile(PARTS, np.array([[0, 1]]), side_by_side=True, whole_devices=[WHOLE])
        assert set(asked) == kinds
        assert slowdown_of(profile) == pytest.approx(1.05 if "model" in kinds else 1.1)


def test_syncs_are_of_each_pair_and_size_and_unknown_where_the_executor_does_not_run_the_pair() -> None:
    def answer(request: Call[Any]) -> float:
        pair, what = request.args
        assert what.kind == "matrix"  # products are most of the work
        if pair == THREE[1:]:
            crashes(what)
        return float(what.size_bytes * (1 + THREE.index(pair[1])))

    found = by_pair(profiler_of(answer, "Convolution", "MatMul").pairs.syncs(THREE).measure(), 3)
    for table, size in zip(found, SYNC_BYTES, strict=True):
        expected = [[np.nan, 2.0, 3.0], [2.0, np.nan, np.nan], [3.0, np.nan, np.nan]]
        np.testing.assert_array_equal(table, size * np.array(expected))


def test_links_of_a_device_that_runs_no_probe_are_means_of_the_others() -> None:
    def answer(request: Call[Any]) -> Probed:
        (what,) = request.args
        assert what.kind == "image"
        if PARTS[1].openvino_name in what.devices:
            crashes(what)
        names = [spec.openvino_name for spec in THREE]
        crossed = what.tensors * (1 + names.index(what.devices[-1])) * 1e-5 if len(what.devices) > 1 else 0.0
        return Probed(1e-5 + crossed, 1e-6, what.size_bytes)

    pairs = profiler_of(answer, "Convolution").pairs
    links = pairs.link_profile(pairs.links(THREE).measure(), None, 3)
    np.testing.assert_allclose(links.latency_s[[0, 2, 0, 1], [2, 0, 1, 0]], [3e-5, 1e-5, 3e-5, 1e-5], rtol=0.05)
    np.testing.assert_allclose(links.latency_s[1, 1], 2e-5, rtol=0.05)  # of all that are known
    assert links.bandwidth_bytes_per_s.min() > 1e9


def test_an_interrupt_ends_a_profile_between_two_steps_and_a_device_that_crashes_is_named() -> None:
    with pytest.raises(DeviceError, match="profiling was interrupted"):
        device(profiler_of(lambda _: times_of(([0], 1.0)), "Relu", should_stop=lambda: True))
    with pytest.raises(DeviceError, match="device 'P0' cannot be profiled: the worker was ended by SIGSEGV"):
        device(profiler_of(crashes, "Relu"))


def test_a_short_budget_makes_a_short_profile() -> None:
    short = Effort.within(1.2, 3)
    assert (short.limit_s, short.probe_limit_s) == pytest.approx((1 / 30, 1 / 600))
    assert (short.call_limit_s, short.total_s) == pytest.approx((60.0, 0.4))
    assert Effort.within(100.0, 1).call_limit_s == 100.0
    assert Effort.within(1e6, 2) == Effort()


@pytest.mark.parametrize(("total_s", "num_asked"), [(12.0, 2), (10.0, 1)])
def test_a_device_that_would_take_a_profile_beyond_its_time_counts_as_another_of_its_plugin(
    total_s: float, num_asked: int
) -> None:
    now_s, steps = 100.0, list[str]()

    def answer(_: object) -> dict[str, Any]:
        nonlocal now_s
        now_s += 6.0
        return times_of(([0], 1.0), ([1], 1.0))

    effort = replace(QUICK, total_s=total_s)
    profiler = profiler_of(answer, "Relu", "Relu", effort=effort, on_step=steps.append, clock=lambda: now_s)
    assert device(profiler).time_s.tolist() == device(profiler, 1).time_s.tolist() == [0.5, 0.5]
    assert now_s == 100.0 + 6.0 * num_asked
    if num_asked == 1:
        assert steps[1] == (
            "profiling P1 takes about 6 s, and only 4 s are left for profiling; its ops are taken to run as on P0"
        )
        with pytest.raises(DeviceError, match="profiling P1 takes about 6 s, and only 4 s are left"):
            device(profiler, 1, [1, 0])


def test_a_model_that_takes_long_to_compile_is_compiled_once(
    tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(WorkerSetup(tiny_resnet, PARTS[:1]))
    opened, original = list[str](), worker.open

    def noted(key: str, candidate: Candidate) -> Opened:
        opened.append(key)
        return original(key, candidate)

    monkeypatch.setattr(worker, "open", noted)
    answers = [worker.op_times(Candidate("CPU_P0"), "CPU_P0", 2, 0.1, again_s) for again_s in (0.0, 1e9)]
    assert opened == ["counted profile", "counted profile", "plain profile"]
    assert all(answer["compile_s"] > 0 and answer["latency_s"] > 0 for answer in answers)


def test_a_hasty_profile_serves_no_careful_search_but_a_careful_one_serves_a_hasty_one(tmp_path: Path) -> None:
    asked = list[Any]()

    def answer(request: object) -> dict[str, Any]:
        asked.append(request)
        return times_of(([0], 1.0))

    for limit_s, num_asked in ((0.1, 1), (1.0, 2), (0.2, 2)):
        how: dict[str, Any] = {"cache": ProfileCache(tmp_path), "effort": replace(QUICK, limit_s=limit_s)}
        device(profiler_of(answer, "Relu", **how))
        assert len(asked) == num_asked
        assert asked[0].args[2:] == (4, 0.1, 75.0)  # an eighth of the time for compiling it again


def test_entries_are_kept_by_effort_and_processors_and_damaged_ones_count_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, below_a_file = ProfileCache(tmp_path), ProfileCache(tmp_path / "file" / "below")
    (tmp_path / "file").write_text("")
    below_a_file.put({"what": "x"}, {"a": 1})
    assert below_a_file.get({"what": "x"}) is None
    cache.put({"what": "x"}, {"a": 1}, 3.0)
    assert cache.get({"what": "x"}, 3.0) == {"a": 1}
    assert cache.get({"what": "x"}, 3.1) is None  # a hasty profile serves no careful search
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 6})
    monkeypatch.setattr(usable_cpus, "__defaults__", (tmp_path / "none", tmp_path))
    assert cache.get({"what": "x"}) is None
    cache.put({"what": "x"}, {"a": 2})
    assert cache.get({"what": "x"}) == {"a": 2}
    for entry in tmp_path.glob("*.json"):
        entry.write_text('{"key": 3')
    assert cache.get({"what": "x"}) is None


COUNTS, BYTES = [1, 1, 4, 4], [4096, 1 << 20, 4096, 1 << 19]


def test_a_fit_finds_launch_latency_and_bandwidth_of_what_ran() -> None:
    launch_s, latency_s, per_byte_s = truth = (2e-4, 3e-5, 1 / 5e9)
    extra_s = np.array([launch_s + n * (latency_s + size * per_byte_s) for n, size in zip(COUNTS, BYTES, strict=True)])
    assert fit_link(COUNTS, BYTES, extra_s) == pytest.approx(truth, rel=1e-3)
    assert fit_link(COUNTS, BYTES, np.where([True, False, False, False], np.nan, extra_s)) == pytest.approx(
        truth, rel=1e-3
    )
    assert fit_link(COUNTS, BYTES, np.where([True, True, False, False], np.nan, extra_s)) is None


def test_large_figures_of_a_fit_may_be_off_by_more() -> None:
    """Four figures of 1 ms and one of 10 ms that is 5% off: the launch stays within a fiftieth."""
    extra_s = np.array([1e-3, 1e-3, 1e-3, 1e-3, 1.05e-2])
    launch_s, *_ = fit_link([1] * 5, [0, 0, 0, 0, 1 << 20], extra_s) or (0.0,)
    assert launch_s == pytest.approx(1e-3, rel=0.02)


def test_where_time_is_over_three_sizes_of_transfers_are_measured_and_nothing_is_kept(tmp_path: Path) -> None:
    asked, notes, now_s = list[str](), list[str](), 100.0

    def answer(request: Call[Any]) -> Any:
        nonlocal now_s
        asked.append(request.name)
        now_s += 6.0 * (request.name == "op_times")
        return machine([1.05] * 9, [])(request)

    how: dict[str, Any] = {"effort": replace(QUICK, total_s=5.0, most_windows=10), "clock": lambda: now_s}
    profiler = profiler_of(answer, "Relu", cache=ProfileCache(tmp_path), on_note=notes.append, **how)
    profile = profiler.profile(PARTS, np.array([[0, 1]]), side_by_side=True)
    assert [asked.count(method) for method in ("op_times", "probe", "sync", "contention")] == [1, 12, 0, 0]
    assert slowdown_of(profile) == 0.0
    assert notes[0] == "there was no time to measure transfers well"
    assert len(list(tmp_path.iterdir())) == 1  # the first device
