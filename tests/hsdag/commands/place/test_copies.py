"""Copies in a search for throughput: which sets of devices are compared, and what their answer is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

import hsdag
from hsdag.base.errors import SearchError
from hsdag.commands.place.comparison import Candidates, TimeLimits, final_comparison
from hsdag.commands.place.copies import Copies, best_pipeline, best_sets, devices_in_use, proposed_copies
from hsdag.commands.place.loaded_model import with_costs
from hsdag.commands.place.outcome import Outcome
from hsdag.commands.place.place import automatic_candidates
from hsdag.commands.place.search import Search
from hsdag.commands.place.session import Session, measured_timeline, placed_candidate
from hsdag.commands.place.shards import ShardProposals
from hsdag.commands.place.verifying import check_of
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.evaluators.schedule import model_values
from hsdag.search.options import PlaceOptions
from tests.hsdag.ir.shards.random_shards import difference, inputs_of, outputs_of
from tests.hsdag.methods.shards.test_choice import mlps

THREE = [f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "ABC"]
DEVICES = ",".join(THREE[:2])


def test_the_best_sets_have_the_largest_sums_of_rates_under_contention() -> None:
    whole_s = np.array([1.0, 2.0, 4.0])
    all_of_them, without_slowest = best_sets([0, 1, 2], whole_s, None)
    assert all_of_them.devices == (0, 1, 2)
    assert all_of_them.period_s == pytest.approx(1 / (1 + 1 / 2 + 1 / 4))
    assert without_slowest.devices == (0, 1)
    assert without_slowest.period_s == pytest.approx(1 / 1.5)
    slowdown = np.ones((3, 3))
    slowdown[0, 2], slowdown[1, 2] = 2.0, 1.5  # what the third device takes from the others is more than it adds
    first, second = best_sets([0, 1, 2], whole_s, slowdown)
    assert first.devices == (0, 1)
    assert second.devices == (0, 1, 2)
    assert second.period_s == pytest.approx(1 / (1 / 2 + 1 / 3 + 1 / 4))
    assert [each.devices for each in best_sets([0, 2], whole_s, None)] == [(0, 2)]


def test_a_pipeline_adds_its_rate_to_those_of_copies_and_all_of_them_slow_each_other_down() -> None:
    slowdown = np.ones((3, 3))
    slowdown[0, 2], slowdown[1, 2], slowdown[2, 0], slowdown[0, 1] = 1.2, 2.0, 1.5, 9.0  # the last is in the 4 s
    over = Plan(np.array([0, 1]))
    (found,) = best_sets([2], np.array([np.nan, np.nan, 2.0]), slowdown, (over, 4.0))
    assert (found.devices, found.pipeline) == ((2,), over)
    assert found.period_s == pytest.approx(1 / (1 / (2.0 * 1.5) + 1 / (4.0 * 2.0)))


@pytest.mark.parametrize(
    ("memory", "first_s", "num_able", "loads_s"),
    [
        (np.inf, 1.0, 3, [2, 2, 0]),
        (150.0, 1.0, 3, [1, 3, 0]),
        (50.0, 1.0, 3, None),
        (np.inf, 9.0, 3, None),  # all of it is better on the second device, and no pipeline
        (np.inf, 1.0, 1, None),
    ],
)
def test_a_pipeline_beside_copies_keeps_to_its_devices_and_their_memory(
    memory: float, first_s: float, num_able: int, loads_s: list[int] | None
) -> None:
    chain = graph_from_edges(["MatMul"] * 4, [(0, 1), (1, 2), (2, 3)], flops=[1e12] * 4)
    graph = replace(chain, weight_bytes=np.full(4, 99.0))
    costs = ScheduleProblem.from_graph(graph, np.array([[first_s, 1.0, 0.1]] * 4), launch_s=0.0)
    supported = np.ones((4, 3), dtype=np.bool_)
    supported[0, :2] = num_able > 1
    limits = np.array([memory, 400.0 if first_s == 1.0 else np.inf, np.inf])
    units = placement_units(graph, max_share=0.1)
    problem = with_costs(Problem(units, tuple("ABC"), supported, THROUGHPUT), costs, limits)
    found = best_pipeline(problem, WorkConservingCosts.of(graph, costs), [0, 1])
    if loads_s is None:
        assert found is None
    else:
        assert found is not None
        assert np.bincount(found[0].placement, minlength=3).tolist() == loads_s
        assert found[1] == pytest.approx(max(loads_s), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "has_pipeline"),
    [
        ({}, [False, False]),
        ({"objective": LATENCY}, []),
        ({"executor": "hetero"}, []),
        ({"memory_bytes": {"A": 1.0}}, [False]),
        ({"memory_bytes": {"A": 1.0, "B": 1.0}}, [True]),
    ],
    ids=str,
)
def test_copies_are_proposed_for_throughput_where_devices_hold_them_and_pipelines_where_not(
    tiny_bert: Path, changes: dict[str, Any], has_pipeline: list[bool]
) -> None:
    options = PlaceOptions(**{"objective": THROUGHPUT, **changes})
    given = resolve_devices(",".join(THREE), None)
    with Session(tiny_bert, given, executor="work-conserving", memory_bytes=dict(options.memory_bytes)) as session:
        costs = ScheduleProblem.from_graph(session.graph, np.full((session.graph.num_ops, 3), 1e-3))
        known = with_costs(session.problem(), costs, np.full(3, np.inf))
        links = SimpleNamespace(syncs=None)
        profile: Any = SimpleNamespace(devices=(), times=(), costs=lambda _: costs, links=links)
        found = proposed_copies(session, options, profile, known)
        assert [each.pipeline is not None for each in found.values()] == has_pipeline
        assert len(proposed_copies(session, options, None, known)) == (not all(has_pipeline))


def test_copies_win_where_nothing_else_runs_and_are_written(tiny_bert: Path) -> None:
    devices = resolve_devices(",".join(THREE), None)
    options = PlaceOptions(devices=",".join(THREE), objective=THROUGHPUT, reward="measured")
    with Session(tiny_bert, devices, objective=THROUGHPUT, executor="work-conserving") as session:
        search = Search(session, options)
        search.prepare()
        ((name, proposed),) = search.copies.items()
        assert proposed == Copies((0, 1, 2), np.inf)
        late = np.arange(search.problem.num_units) >= search.problem.num_units // 2
        search.copies = {name: Copies((2,), 1.0, search.problem.nearest(late.astype(np.int64)))}
        assert automatic_candidates(session)["AUTO:CPU"].properties == {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}
        candidate = search.copies[name].candidate(session, search.problem)
        with pytest.raises(SearchError, match="copies have no course of one inference"):
            measured_timeline(session, candidate)
        limits, check = TimeLimits(Protocol(limit_s=2.0, min_rounds=2)), check_of(session, options)
        rng = np.random.default_rng(0)
        final = final_comparison(session.runner, Candidates({name: candidate}, {}), limits, check, rng=rng)
        assert final.answer == name
        final = replace(final, comparison=replace(final.comparison, disturbed=0.0))
        busy = Outcome(search, replace(final, others=0.25)).warnings[-1]
        assert busy.startswith("other programs took 25% of the processors during the comparison")
        assert Outcome(search, replace(final, others=0.2499)).warnings == ()
        outcome = Outcome(search, final)
        placement, held, ops = outcome.placement, outcome.weight_bytes, outcome.rows[0].ops
        size, num = float(session.graph.weight_bytes.sum()), session.graph.num_ops
        assert (held["C"], ops["C"], ops["A"] + ops["B"]) == (size, num, num)
        assert size <= held["A"] + held["B"] < 1.5 * size
        again = placed_candidate(session, "again", placement, "work-conserving").copies
        order = np.arange(search.problem.num_units)[::-1].copy()
        search.finalists, search.copies = [Plan(np.zeros_like(order), order)], {}
        ordered = replace(final, answer="placement 1", ratios={"placement 1": final.ratios[name]})
        ranks = dict(zip(session.graph.canonical_names, search.problem.expand(order).tolist(), strict=True))
        assert Outcome(search, ordered).placement.priority == ranks
    assert (placement.method, placement.executor, placement.affinity) == ("copies", "work-conserving", {})
    whole, pipeline = placement.copies or ()
    assert (whole.device, pipeline.devices, pipeline.requests) == ("C", ("A", "B"), 3)
    assert again == (("CPU_C", whole.requests), (candidate.copies[1][0], 3))


def test_shards_beside_a_copy_are_proposed_where_stages_do_not_fit_and_are_run_and_written(tmp_path: Path) -> None:
    model, memory = mlps(1, width=64, hidden=1024), dict.fromkeys("AB", 3e5)
    inputs, limits = inputs_of(model, np.random.default_rng(0)), [3e5, 3e5, np.inf]
    ov.save_model(model, path := tmp_path / "mlp.xml", compress_to_fp16=False)
    options, given = PlaceOptions(objective=THROUGHPUT), resolve_devices(",".join(THREE), None)
    with Session(path, given, objective=THROUGHPUT, executor="work-conserving", memory_bytes=memory) as session:
        whole_s, search = session.graph.flops / 1e9, Search(session, options)
        slowdown, links = np.full((3, 3), 1.1), SimpleNamespace(syncs=(np.zeros((3, 3)),) * 2)
        costs = ScheduleProblem.from_graph(session.graph, np.tile(whole_s[:, None], 3), slowdown=slowdown)
        profile: Any = SimpleNamespace(devices=(), times=(), costs=lambda _: costs, links=links)
        search.problem = with_costs(session.problem(), costs, np.array(limits))
        search.proposals = ShardProposals(session, options, profile)
        search.copies = proposed_copies(session, options, profile, search.problem)
        ((name, copies),) = search.copies.items()
        assert isinstance(copies.pipeline, Sharding)
        assert (copies.devices, devices_in_use(copies.pipeline)) == ((2,), [0, 1])
        assert copies.period_s == pytest.approx(1.1**2 * whole_s.sum() / 3, rel=0.02)  # each beside two others
        candidate, check = copies.candidate(session, search.problem), check_of(session, options)
        short, rng = TimeLimits(Protocol(limit_s=2.0, min_rounds=2)), np.random.default_rng(0)
        final = final_comparison(session.runner, Candidates({name: candidate}, {}), short, check, rng=rng)
        outcome = Outcome(search, final)
        placement, held, ops = outcome.placement, outcome.weight_bytes, outcome.rows[0].ops
        assert placed_candidate(session, "again", placement, "work-conserving").copies[1] == candidate.copies[1]
    assert [held["C"], held["A"] + held["B"]] == pytest.approx([5.2e5, 5.2e5], rel=0.02)
    assert ops["C"] >= max(ops["A"], ops["B"]) >= 3
    with hsdag.compile_model(path, placement) as compiled:
        found = [[*copy.idle[0].infer(inputs).values()] for copy in compiled.copies]
    assert [difference(each, outputs_of(model, inputs)) < 1e-5 for each in found] == [True, True]


def test_auto_looks_for_the_placement_that_suits_hetero_best_among_all_that_were_tried(tiny_resnet: Path) -> None:
    options = PlaceOptions(devices=DEVICES, budget_s=8.0, method="sa", max_evaluations=6)
    with Session(tiny_resnet, resolve_devices(DEVICES, None), executor="work-conserving") as session:
        search = Search(session, options)
        search.run()
        assert search.profile is not None
        assert search.under_hetero is not None
        tried = [*search.finalists, *(event.plan for event in search.course.events if event.plan.is_split)]
        costs = session.model.costs(search.profile, "hetero")
        values = model_values(search.problem, costs, [search.under_hetero, *tried])
        assert values[0] == values[1:].min()
        assert search.plans[f"placement {len(search.plans)}"] in (search.under_hetero, search.finalists[-1])
