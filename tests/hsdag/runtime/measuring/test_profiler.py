"""Profiles of real devices, links by probes with known answers, and the cache they are kept in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.processes import CandidateFailed, WorkerClient
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.candidate import Candidate, Opened
from hsdag.runtime.measuring.messages import Call, Probed, WorkerSetup
from hsdag.runtime.measuring.profile import KINDS, Contention, DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.measuring.profiler import FIGURES, Effort, Profiler, fit_link
from hsdag.runtime.measuring.worker import Worker

PARTS = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS={i + 1}]") for i in range(2))
QUICK = Effort(runs=4, limit_s=0.5, probe_runs=5, probe_limit_s=0.05, pair_limit_s=0.05)


@pytest.fixture(scope="module")
def profiled(tiny_resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, ModelProfile, ProfileCache]:
    cache = ProfileCache(tmp_path_factory.mktemp("profiles"))
    with Session(tiny_resnet, DeviceSet(PARTS, ())) as session:
        return session, session.profile(cache, QUICK, side_by_side=True), cache


Profiled = tuple[Session, ModelProfile, ProfileCache]


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_op_that_does_all_but_a_thousandth_of_the_work_takes_most_of_the_time(
    tmp_path: Path, has_bias: bool
) -> None:
    # the CPU's plugin names a product with a bias after the sum alone
    x = opset13.parameter([512, 1024], np.float32, name="x")
    weight = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    product = opset13.matmul(x, opset13.constant(weight), False, False)
    if has_bias:
        product = opset13.add(product, opset13.constant(weight[:1]))
    row = opset13.gather(product, opset13.constant([0]), opset13.constant(0))
    ov.serialize(ov.Model([opset13.result(opset13.sigmoid(row))], [x], "heavy"), tmp_path / "heavy.xml")
    with Session(tmp_path / "heavy.xml", DeviceSet(PARTS[:1], ())) as session:
        time_s = session.profile(ProfileCache(None), QUICK).times[0].time_s
        assert session.graph.op_types[int(np.argmax(time_s))] == "MatMul"
        assert time_s.max() > 0.6 * time_s.sum()


def test_a_relu_is_fused_into_its_convolution_and_stays_with_it(profiled: Profiled) -> None:
    session, profile, _ = profiled
    types = [{session.graph.op_types[v] for v in ops} for ops in profile.times[0].fused]
    assert any({"Convolution", "Relu"} <= found for found in types)
    units = session.problem(profile=profile).units.partition.labels
    assert all(len(set(units[list(ops)].tolist())) == 1 for ops in profile.fused)
    for device in profile.times:
        assert all(np.count_nonzero(device.time_s[list(ops)]) <= 1 for ops in device.fused)


def test_times_of_ops_and_costs_of_units_add_up_to_the_latency_of_the_model(profiled: Profiled) -> None:
    session, profile, _ = profiled
    costs, links = session.problem(profile=profile).costs, profile.links
    assert costs is not None
    whole_s = costs.time_s.sum(axis=0) + costs.launch_s
    for d, device in enumerate(profile.times):
        assert device.latency_s is not None
        assert device.time_s.min() >= 0
        assert device.time_s.sum() == pytest.approx(device.latency_s)
        assert whole_s[d] == pytest.approx(device.latency_s)
    crossing_s = links.launch_s[1] + links.latency_s[0, 1] + 1e6 / links.bandwidth_bytes_per_s[0, 1]
    assert 0 < crossing_s < 3600.0
    known = [device.memory_bytes for device in profile.times]
    assert profile.memory_bytes.sum() == pytest.approx(known[0])  # parts of the CPU share it


def test_devices_side_by_side_are_measured_by_every_kind_of_probe(profiled: Profiled) -> None:
    contention, costs = profiled[1].contention, profiled[1].costs(profiled[0].graph)
    assert contention is not None
    assert all(contention.factor[kind][[0, 1], [1, 0]].min() >= 1.0 for kind in KINDS)
    assert costs.slowdown is not None
    assert costs.slowdown.tolist() == [
        [1.0, contention.factor["model"][0, 1]],
        [contention.factor["model"][1, 0], 1.0],
    ]


def profiler_of(
    answer: Callable[[Call[Any]], Any], *types: str, cache: ProfileCache | None = None, **how: Any
) -> Profiler:
    """Of a model of ops in a chain, in a worker that gives these answers."""
    client = cast("WorkerClient", SimpleNamespace(call=lambda request, *_: answer(request)))
    edges = [(v, v + 1) for v in range(len(types) - 1)]
    graph = graph_from_edges(list(types), edges, flops=[float(kind == "MatMul") for kind in types])
    return Profiler(client, graph, "digest", cache or ProfileCache(None), **{"effort": QUICK, **how})


def times_of(*seconds: float) -> dict[str, Any]:
    """What a worker answers of a device on which ops take so long, the whole model 1 s."""
    primitives = [[[v], s, 0, ""] for v, s in enumerate(seconds)]
    return {"primitives": primitives, "latency_s": 1.0, **dict.fromkeys(FIGURES)}


def crashes(_: object) -> None:
    raise CandidateFailed("the worker was ended by SIGSEGV")


def device(profiler: Profiler, d: int = 0) -> DeviceProfile:
    return profiler._device(PARTS, np.full(profiler._graph.num_ops, d), d)


def test_pairs_that_were_not_measured_side_by_side_are_unknown_and_said_to_be() -> None:
    """A model that is too slow for the time that is left is not even asked for."""
    asked, steps = list[object](), list[str]()

    def answer(request: Call[Any]) -> None:
        asked.append(request.args[1])
        crashes(request)

    slow = DeviceProfile(np.ones(1), (), 1e3, 0.0, 1, 0, None, device=PARTS[0])
    found = profiler_of(answer, "Relu", on_step=steps.append).contention(PARTS, [slow] * 2)
    assert np.isnan(found.slowdown[0, 1])
    assert asked == ["compute", "memory"]
    assert steps[-1] == "how much P0 and P1 slow each other down could not be measured; they are taken not to"


def test_links_of_a_device_that_runs_no_probe_are_means_of_the_others() -> None:
    def answer(request: Call[Any]) -> Probed:
        (what,) = request.args
        if PARTS[1].openvino_name in what.devices:
            crashes(what)
        names = [spec.openvino_name for spec in three]
        crossed = what.tensors * (1 + names.index(what.devices[-1])) * 1e-5 if len(what.devices) > 1 else 0.0
        return Probed(1e-5 + crossed, 1e-6, what.size_bytes)

    three = (*PARTS, DeviceSpec.parse("P2=CPU[INFERENCE_NUM_THREADS=3]"))
    links = profiler_of(answer, "MatMul")._links(three)
    np.testing.assert_allclose(links.latency_s[[0, 2, 0, 1], [2, 0, 1, 0]], [3e-5, 1e-5, 3e-5, 1e-5], rtol=0.05)
    np.testing.assert_allclose(links.latency_s[1, 1], 2e-5, rtol=0.05)  # of all that are known


def test_factors_are_of_the_least_times_and_at_least_one() -> None:
    """The model's own slow-down counts where it was measured, else the mean of both small ones."""

    def rounds(*beside_s: float) -> list[tuple[float, float]]:
        return [(1.0, s) for s in beside_s]

    found = Contention.of(
        {
            "model": [[[], rounds(2.0, 2.05, 2.1)], [[], []]],
            "compute": [[[], rounds(0.9, 0.8)], [rounds(2.0, 1.7, 3.4), []]],
            "memory": [[[], []], [[(1.0, 3.0), (2.0, 3.0)], []]],
        },
        2,
    )
    np.testing.assert_array_equal(found.factor["model"], [[np.nan, 2.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.factor["compute"], [[np.nan, 1.0], [1.7, np.nan]])
    assert (found.factor["memory"][1, 0], np.isnan(found.factor["memory"][0, 1])) == (3.0, True)
    assert found.slowdown.tolist() == [[1.0, 2.0], [(1.7 + 3.0) / 2, 1.0]]


def test_a_profile_comes_from_the_cache_the_second_time(profiled: Profiled, tiny_resnet: Path) -> None:
    _, profile, cache = profiled
    steps: list[str] = []
    with Session(tiny_resnet, DeviceSet(PARTS, ())) as session:
        again = session.profile(cache, QUICK, on_step=steps.append, side_by_side=True)
    assert [step.partition(";")[0] for step in steps] == ["P0 was profiled before", "P1 was profiled before"]
    assert np.array_equal(again.times[1].time_s, profile.times[1].time_s)
    assert np.array_equal(again.links.launch_s, profile.links.launch_s)
    assert again.contention is not None
    assert profile.contention is not None
    assert np.array_equal(again.contention.slowdown, profile.contention.slowdown)


def test_a_model_that_differs_in_a_body_alone_is_another_model_to_the_cache(tmp_path: Path) -> None:
    steps, names = list[str](), set()
    for name in ("relu", "tanh"):
        x, condition = opset13.parameter([4], np.float32, name="x"), opset13.parameter([], bool, name="c")
        branch = opset13.if_op(condition)
        inner = [opset13.parameter([4], np.float32, name="inner") for _ in range(2)]
        bodies = [ov.Model([opset13.result(getattr(opset13, name)(y, name="y"))], [y], "body") for y in inner]
        branch.set_then_body(bodies[0])
        branch.set_else_body(bodies[1])
        branch.set_friendly_name("if")
        branch.set_input(x.output(0), *inner)
        result = opset13.result(branch.set_output(*(body.get_results()[0] for body in bodies)))
        result.set_friendly_name("result")
        ov.serialize(ov.Model([result], [condition, x], "if"), tmp_path / f"{name}.xml")
        with Session(tmp_path / f"{name}.xml", DeviceSet(PARTS[:1], ())) as session:
            names.add(session.model_record.fingerprint)
            session.profile(ProfileCache(tmp_path / "cache"), QUICK, steps.append)
    assert steps.count("profiling P0") == 2
    assert len(names) == 1  # to a placement they are one model


def test_a_model_below_the_counters_resolution_has_its_latency_at_its_heaviest_op() -> None:
    profiler = profiler_of(lambda _: times_of(0.0, 0.0, 0.0), "Sin", "MatMul", "Sin")
    assert device(profiler).time_s.tolist() == [0.0, 1.0, 0.0]


def test_an_interrupt_ends_a_profile_between_two_steps_and_a_device_that_crashes_is_named() -> None:
    with pytest.raises(DeviceError, match="profiling was interrupted"):
        device(profiler_of(lambda _: times_of(1.0), "Relu", should_stop=lambda: True))
    with pytest.raises(DeviceError, match="device 'P0' cannot be profiled: the worker was ended by SIGSEGV"):
        device(profiler_of(crashes, "Relu"))


def test_the_one_launch_in_a_models_latency_is_taken_out_of_its_ops() -> None:
    device = DeviceProfile(np.array([6.0, 4.0]), (), 10.0, 0.0, 1, 0, None, device=PARTS[0])
    links = LinkProfile(np.array([2.0]), np.zeros((1, 1)), np.ones((1, 1)))
    costs = ModelProfile(devices=(device,), links=links).costs(graph_from_edges(["Relu"] * 2, []))
    assert costs.time_s[:, 0].tolist() == pytest.approx([4.8, 3.2])


def test_a_short_budget_makes_a_short_profile() -> None:
    assert Effort.within(1.0, 2).limit_s < Effort().limit_s
    assert Effort.within(1e6, 2) == Effort()


def test_a_device_that_would_take_a_profile_beyond_its_time_counts_as_another_of_its_plugin() -> None:
    now_s, steps = 0.0, list[str]()

    def answer(_: object) -> dict[str, Any]:
        nonlocal now_s
        now_s += 6.0
        return times_of(1.0)

    effort = replace(QUICK, total_s=10.0)
    profiler = profiler_of(answer, "Relu", effort=effort, on_step=steps.append, clock=lambda: now_s)
    first, second = device(profiler), device(profiler, 1)
    assert "takes about 6 s, and only 4 s are left for profiling; its ops are taken to run as on P0" in steps[1]
    assert second.time_s.tolist() == first.time_s.tolist() == [1.0]


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
    asked = list[object]()

    def answer(request: object) -> dict[str, Any]:
        asked.append(request)
        return times_of(1.0)

    for limit_s, num_asked in ((0.1, 1), (1.0, 2), (0.2, 2)):
        effort = replace(QUICK, limit_s=limit_s)
        device(profiler_of(answer, "Relu", cache=ProfileCache(tmp_path), effort=effort))
        assert len(asked) == num_asked


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
