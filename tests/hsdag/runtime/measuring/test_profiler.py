"""Profiles of real devices and of workers with known answers, links by probes, and the cache they are kept in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.processes import CandidateFailed, WorkerClient
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.machine.usable import OtherPrograms, Seconds, usable_cpus
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.messages import Call, Candidate, Opened, Probed, WorkerSetup
from hsdag.runtime.measuring.profile import KINDS, DeviceProfile
from hsdag.runtime.measuring.profiler import FIGURES, SYNC_BYTES, Effort, Profiler, fit_link
from hsdag.runtime.measuring.worker import Worker

THREE = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS={i + 1}]") for i in range(3))
PARTS = THREE[:2]
SLOW = DeviceProfile(np.ones(1), (), 2.0, 0.0, 1, 0, None, 2.0, device=PARTS[0])
QUICK = Effort(runs=4, limit_s=0.5, probe_runs=5, probe_limit_s=0.05, pair_limit_s=0.05)


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
    how = {"effort": QUICK, "others": lambda: OtherPrograms(lambda: Seconds(0.0, 0.0, 0.0)), **how}
    return Profiler(client, graph, "digest", cache or ProfileCache(None), **how)


def times_of(*primitives: tuple[list[int], float]) -> dict[str, Any]:
    """What a worker answers of a device on which primitives of ops take so long, the whole model 1 s."""
    rows = [[ops, seconds, 0, ""] for ops, seconds in primitives]
    return {"primitives": rows, "latency_s": 1.0, **dict.fromkeys(FIGURES)}


def crashes(_: object) -> None:
    raise CandidateFailed("the worker was ended by SIGSEGV")


def device(profiler: Profiler, d: int = 0, carriers: list[int] | None = None) -> DeviceProfile:
    return profiler._device(PARTS, np.array(carriers or [d] * profiler.graph.num_ops), d)


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


def test_ops_that_another_device_carries_have_no_time_and_a_part_of_a_model_has_no_latency(tmp_path: Path) -> None:
    profiler = profiler_of(lambda _: times_of(([0], 1.0), ([1], 3.0)), "Sin", "Sin", cache=ProfileCache(tmp_path))
    assert device(profiler).latency_s == 1.0
    found = device(profiler, carriers=[0, 1])
    assert len(list(tmp_path.glob("*.json"))) == 2
    np.testing.assert_array_equal(found.time_s, [0.25, np.nan])
    assert found.latency_s is None
    still = device(profiler_of(lambda _: times_of(([0], 0.0)), "Sin", "Sin"), carriers=[0, 1])
    np.testing.assert_array_equal(still.time_s, [1.0, np.nan])  # what the counters are too coarse for


@pytest.mark.parametrize(("total_s", "has_model"), [(36.0, True), (35.9, False)])
def test_devices_side_by_side_are_kept_where_all_was_measured_and_unknown_pairs_are_told(
    total_s: float, has_model: bool, tmp_path: Path
) -> None:
    """A model of 2 s, 2 s to compile on either device, is not asked for where 4 + 4 x 4 x 2 s are not left."""
    asked, steps = list[Any](), list[str]()

    def answer(request: Call[Any]) -> Any:
        asked.append((request.args[1], request.args[2]))
        return [[[], [(1.0, 2.0)] * 2], [[(1.0, 3.0)] * 2, []]]

    effort = replace(QUICK, total_s=total_s, pair_limit_s=2.0)
    how: dict[str, Any] = {"cache": ProfileCache(tmp_path), "effort": effort, "clock": lambda: 100.0}
    profiler = profiler_of(answer, "Relu", on_step=steps.append, **how)
    found = [profiler.contention(PARTS, [SLOW] * 2).slowdown.tolist() for _ in range(2)]
    assert found == [[[1.0, 2.0], [3.0, 1.0]]] * 2
    small, model = [("compute", pytest.approx(0.3)), ("memory", pytest.approx(0.3))], ("model", pytest.approx(1.4))
    assert asked == ([*small, model] if has_model else small * 2)
    assert steps == ["profiling devices side by side"] * (1 if has_model else 2)
    asked.clear()
    profiler = profiler_of(
        lambda request: [*answer(request)[:1], [[], []]], "Relu", on_step=steps.append, effort=effort
    )
    assert np.isnan(profiler.contention(PARTS, [SLOW, replace(SLOW, latency_s=None)]).slowdown[1, 0])
    assert [kind for kind, _ in asked] == ["compute", "memory"]
    assert np.isnan(profiler_of(crashes, "Relu", on_step=steps.append).contention(PARTS, [SLOW] * 2).slowdown[0, 1])
    assert steps[-1] == "the slow-down of P0 and P1 could not be measured; none is assumed"


def test_devices_side_by_side_are_measured_again_where_other_programs_were_in_the_way(tmp_path: Path) -> None:
    def others(share: float) -> OtherPrograms:
        seconds = iter([Seconds(0.0, 0.0, 0.0), *[Seconds(100.0, 100.0 * share, 0.0)] * 2])
        return OtherPrograms(lambda: next(seconds))

    shares, steps, cache = iter([0.25, 0.2499, 0.0]), list[str](), ProfileCache(tmp_path)
    profiler = profiler_of(
        lambda _: [[[], [(1.0, 2.0)] * 2], [[(1.0, 2.0)] * 2, []]],
        "Relu",
        cache=cache,
        on_step=steps.append,
        others=lambda: others(next(shares)),
    )
    found = [profiler.contention(PARTS, [SLOW] * 2) for _ in range(3)]
    assert [np.nan_to_num(each.slowdown[0, 1]) for each in found] == [0.0, 2.0, 2.0]
    busy = "other programs used 25% of the processors, so the slow-down of P0 and P1 could not be measured"
    measuring = "profiling devices side by side"
    assert steps == [measuring, f"{busy}; none is assumed", measuring]


def test_syncs_are_of_each_pair_and_size_and_unknown_where_the_executor_does_not_run_the_pair() -> None:
    def answer(request: Call[Any]) -> float:
        pair, what = request.args
        assert what.kind == "matrix"  # products are most of the work
        if pair == THREE[1:]:
            crashes(what)
        return float(what.size_bytes * (1 + THREE.index(pair[1])))

    found = profiler_of(answer, "Convolution", "MatMul").syncs(THREE)
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

    links = profiler_of(answer, "Convolution")._links(THREE)
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
    assert (short.limit_s, short.probe_limit_s, short.pair_limit_s) == pytest.approx((1 / 30, 1 / 600, 0.025))
    assert (short.call_limit_s, short.total_s) == (60.0, 0.6)
    assert (Effort.within(100.0, 1).call_limit_s, Effort.within(0.4, 1).pair_limit_s) == (100.0, 0.05)
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


SIZES = [(1, 4096), (1, 1 << 20), (4, 4096), (4, 1 << 19)]
ALONE = [Probed(1e-5, 1e-6, size) for _, size in SIZES]


def test_a_fit_finds_launch_latency_and_bandwidth_and_trusts_probes_by_their_errors() -> None:
    launch_s, latency_s, per_byte_s = truth = (2e-4, 3e-5, 1 / 5e9)
    cut = [Probed(1e-5 + launch_s + n * (latency_s + size * per_byte_s), 1e-6, size) for n, size in SIZES]
    assert fit_link(SIZES, ALONE, ALONE, cut) == pytest.approx(truth, rel=1e-3)
    noisy = [*cut[:2], replace(cut[2], rest_s=2 * cut[2].rest_s), cut[3]]
    for who, errors in (("cut", (1.0, 0.0, 0.0)), ("sender", (0.0, 1.0, 0.0)), ("receiver", (0.0, 0.0, 1.0))):
        own, sent, received = (
            [*probes[:2], replace(probes[2], error_s=error_s or probes[2].error_s), probes[3]]
            for probes, error_s in zip((noisy, ALONE, ALONE), errors, strict=True)
        )
        assert fit_link(SIZES, sent, received, own) == pytest.approx(truth, rel=1e-2), who
    assert fit_link(SIZES, ALONE, ALONE, noisy) != pytest.approx(truth, rel=0.1)
    assert fit_link(SIZES, ALONE, ALONE, [None, *cut[1:]]) == pytest.approx(truth, rel=1e-3)
    for few in ((ALONE, ALONE, [None, None, *cut[2:]]), ([None, None, *ALONE[2:]], ALONE, cut)):
        assert fit_link(SIZES, *few) is None
    assert fit_link(SIZES, ALONE, [None, None, *ALONE[2:]], cut) is None
