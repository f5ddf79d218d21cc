"""Reproducing tables: every column has its recipe, ours stand beside the paper's, and what is missing has a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from hsdag.commands.families import find_family
from hsdag.commands.profile import assumed_costs
from hsdag.commands.reproducing import RECIPES, Effort, reproduce, transfer, unseen
from hsdag.commands.reproducing.base import Recipe
from hsdag.commands.reproducing.diviml_tables import BatchedThroughput, Progress, SolverTimes
from hsdag.commands.reproducing.doppler_tables import levels, with_barriers
from hsdag.commands.reproducing.hsdag_tables import (
    SEQUENTIAL,
    GraphStatistics,
    in_sets,
    on_two_cpu_devices,
    outputs_of,
)
from hsdag.commands.reproducing.searches import (
    CONTROLS,
    Absent,
    LargestBound,
    Search,
    SearchTable,
    Single,
    in_milliseconds,
)  # fmt: skip
from hsdag.commands.reproducing.transfer import SHOTS, EdgeCounts, TransferTable, edges_by_link
from hsdag.commands.reproducing.unseen import UnseenGraphs
from hsdag.commands.runs import run_once
from hsdag.commands.train import UNSEEN
from hsdag.commands.workload import build_problem, with_devices
from hsdag.fleet.pool import LocalHost, Pool
from hsdag.ir.errors import OptionError
from hsdag.learning.doppler.config import DopplerConfig
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.placers.learned.doppler import DopplerPlacer
from hsdag.placers.lists.random import RandomPlacer
from hsdag.placers.names import method_names
from hsdag.placers.registry import changed_options, find_preset, make_placer
from hsdag.reports import CurvePoint
from hsdag.reports.paper_tables import PAPER_TABLES, PaperTable
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Execution, Semantics, simulate, simulate_makespans
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.placers.exact.exact_reference import random_problem

TINY = Effort(budget_s=600.0, max_evaluations=20, num_seeds=2)
TRANSFERS = {name: recipe.others for name, recipe in RECIPES.items() if isinstance(recipe, TransferTable)}
SEARCHES = {name: recipe for name, recipe in RECIPES.items() if isinstance(recipe, SearchTable)} | TRANSFERS
PAPER = PaperTable("x-1", "X", "Table 1", "Title", "ms", ("HEFT", "Missing", "one", "bound"), {"net": (5.0, None, "OOM", (1.0, 0.1))})  # fmt: skip  # noqa: E501


def table(**settings: object) -> SearchTable:
    own = {"HEFT": Search("heft"), "Missing": Absent("not here"), "one": Single("d9"), "bound": LargestBound()}
    return SearchTable(lambda _: random_problem(1, 10, 3), own | settings, "About.", in_milliseconds)  # type: ignore[arg-type]


def test_every_table_has_a_recipe_and_every_column_of_a_search_table_its_setting() -> None:
    assert set(RECIPES) == set(PAPER_TABLES)
    for name, recipe in SEARCHES.items():
        assert set(PAPER_TABLES[name].columns) <= {*recipe.settings, *(SHOTS if name in TRANSFERS else ())}, name
        methods = [each.method for each in {**CONTROLS, **recipe.settings}.values() if isinstance(each, Search)]
        assert set(methods) <= set(method_names()), name


@pytest.mark.parametrize("name", SEARCHES)
def test_settings_are_hyper_parameters_of_their_methods(name: str) -> None:
    for setting in SEARCHES[name].settings.values():
        if isinstance(setting, Search):
            chosen = find_preset(setting.method, setting.preset, is_cheap=True)
            changed_options(setting.method, chosen.options, setting.changes)


def test_ours_stand_beside_the_papers_and_what_is_missing_has_a_reason() -> None:
    shown = (*PAPER.columns, "random draws")
    found = reproduce(PAPER, table(), TINY, "hsdag reproduce x-1", columns=shown)
    cells = {cell.column: cell for cell in found.cells}
    assert tuple(cells) == shown
    costs = random_problem(1, 10, 3)
    heft = solve(costs, make_placer("heft"), SolveOptions("heft")).value_s
    assert heft is not None
    assert cells["HEFT"].paper == 5.0
    assert cells["HEFT"].ours.value == pytest.approx(1e3 * heft)
    assert (cells["Missing"].ours.value, cells["Missing"].ours.note) == (None, "not here")
    assert "d9" in cells["one"].ours.note or "single device" in cells["one"].ours.note
    assert cells["bound"].ours.value is not None
    assert cells["bound"].ours.value <= 1e3 * heft
    assert cells["random draws"].paper is None
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert (document["ours"], document["complete"], document["cells"][3]["paper"]) == ("simulated", True, [1.0, 0.1])


def test_the_figure_is_the_mean_over_seeds_with_its_deviation() -> None:
    both = dict(table(a=Search("random")).row("net", ("a",), TINY, Watcher()))["a"]
    each = [dict(table(a=Search("random", seed=s)).row("net", ("a",), TINY, Watcher()))["a"].value for s in (0, 1)]
    assert both.value == pytest.approx(np.mean(np.array(each, dtype=float)))
    assert both.deviation == pytest.approx(np.std(np.array(each, dtype=float), ddof=1))


def test_a_column_of_other_semantics_is_searched_under_them_and_proves_nothing_for_the_table() -> None:
    in_turn, columns = Semantics(Execution.SEQUENTIAL), ("met", "met beside", "bound")
    both = table(met=Search("met"), **{"met beside": Search("met", semantics=in_turn)})
    found = dict(both.row("net", columns, TINY, Watcher()))
    alone = dict(table(met=Search("met")).row("net", ("met", "bound"), TINY, Watcher()))
    assert found["met"].value == alone["met"].value
    assert (found["met beside"].value or 0) > (found["met"].value or 0)
    assert found["bound"].value == alone["bound"].value


def test_single_devices_of_the_papers_machine_take_what_its_table_says() -> None:
    problem = in_sets("resnet50")
    everything = np.repeat(np.arange(2)[:, None], problem.num_ops, axis=1)
    assert simulate_makespans(problem, everything, SEQUENTIAL) == pytest.approx([0.0160, 0.00781])


def test_time_is_shown_where_the_table_is_of_times() -> None:
    found = dict(table(a=Search("heft", shows_time=True)).row("net", ("a",), TINY, Watcher()))["a"]
    assert found.value == pytest.approx(found.elapsed_s / TINY.num_seeds)


def test_a_search_tells_how_many_plans_it_evaluated_where_asked_to() -> None:
    found = dict(table(a=Search("random", counts_plans=True)).row("net", ("a",), TINY, Watcher()))["a"]
    assert found.note == f"{TINY.max_evaluations} plans a search"


def test_a_method_that_runs_out_of_memory_has_that_as_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: RandomPlacer, __: Incumbent) -> Status:
        raise MemoryError

    monkeypatch.setattr(RandomPlacer, "_search", failing)
    found = dict(table(a=Search("random")).row("net", ("a", "HEFT"), TINY, Watcher()))
    assert (found["a"].value, found["a"].note) == (None, "2 of 2 runs failed: out of memory")
    assert found["HEFT"].value is not None


@pytest.mark.slow
def test_a_row_has_the_same_figures_on_workers() -> None:
    columns = ("Missing", "hill climber", "one", "HEFT", "bound")
    with Pool([LocalHost(), LocalHost()]) as pool:
        away = dict(table().row("net", columns, replace(TINY, pool=pool), Watcher()))
    here = dict(table().row("net", columns, TINY, Watcher()))
    assert list(away) == list(columns)
    for column in columns:
        assert (away[column].value, away[column].note) == (here[column].value, here[column].note)


def test_a_policy_is_moved_as_it_is_and_learns_on(tmp_path: Path) -> None:
    effort = Effort(budget_s=600.0, max_evaluations=30, num_seeds=1)
    small, path = build_problem("ffnn", "p100x4", {"devices": 2}), tmp_path / "policy.safetensors"
    searches = SearchTable(lambda _: small, {"HEFT": Search("heft")}, "About.", in_milliseconds)
    columns = ("zero-shot", "2k-shot", "untrained", "HEFT")
    found = dict(TransferTable(lambda _: small, searches).row("net", ("HEFT", *columns[:3]), effort, Watcher()))
    assert tuple(found) == columns
    assert all(ours.value is not None for ours in found.values())
    lost = TransferTable(lambda _: small, searches)._shot(small, 2000, [tmp_path / "none"], effort, Watcher())
    assert "is not a policy file" in lost.note  # which it begins with
    placer = DopplerPlacer(DopplerConfig(own_scores=False))
    solve(small, placer, SolveOptions("doppler", budget_s=600.0, max_evaluations=30))
    placer.save(path)
    again = DopplerPlacer(DopplerConfig(initial=str(path), own_scores=False))
    moved = again.policy(problem_of(small), torch.Generator().manual_seed(9)).best(torch.Generator().manual_seed(0))
    assert (moved.plan.placement == placer.most_probable(0)).all()


def test_a_policy_of_a_family_is_judged_beside_methods_on_a_graph_that_it_has_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TESTED": 1, "PROBLEMS": 2, "EXPERT_SHARE": 1 / 30_000, "UPDATES_PER_S": 1 / 150}.items():
        monkeypatch.setattr(unseen, name, value)
    effort = Effort(budget_s=600.0, max_evaluations=200)
    found = dict(UnseenGraphs().row("enas", ("zero-shot", "best of 16 draws", "HEFT"), effort, Watcher()))
    problem = find_family("enas").problem(UNSEEN)
    search = SolveOptions(budget_s=600.0, max_evaluations=200)
    heft_s, least_s = (run_once(problem, replace(search, method=method)).value_s for method in ("heft", "sa"))
    assert heft_s is not None
    assert least_s is not None
    assert found["HEFT"].value == pytest.approx(heft_s / least_s)
    draws, most_probable = found["best of 16 draws"].value, found["zero-shot"].value
    assert draws is not None
    assert most_probable is not None
    assert 0 < draws <= most_probable


def test_a_mean_leaves_out_what_has_no_plan_within_memory_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_train", lambda *_: None)
    monkeypatch.setattr(transfer, "zero_shot_s", lambda _, path, seed: np.inf if path is None or seed == 0 else 0.002)
    paper = replace(PAPER, columns=("zero-shot",), rows={"net": (None,)})
    moved = TransferTable(lambda _: random_problem(1, 10, 3), table())
    found = reproduce(paper, moved, TINY, "", columns=("zero-shot", "untrained"))
    cells = json.loads(json.dumps(found.document(), allow_nan=False))["cells"]
    assert [(cell["ours"], cell["note"]) for cell in cells] == [
        (2.0, "no plan within memory for 1 of 2 seeds"), (None, "no plan within memory for 2 of 2 seeds")
    ]  # fmt: skip


def test_markdown_has_a_line_for_each_column_and_says_what_is_simulated() -> None:
    text = reproduce(PAPER, table(), TINY, "hsdag reproduce x-1", columns=("HEFT", "Missing")).markdown()
    assert text.startswith("### X, Table 1: Title, in ms; ours are SIMULATED\n")
    assert "| | net: paper | ours | seconds |" in text.replace("|  |", "| |")
    assert "| HEFT | 5 | " in text
    assert "- Missing: not here\n" in text
    assert "- `hsdag reproduce x-1` took " in text


def test_rows_and_columns_are_chosen_by_name() -> None:
    with pytest.raises(OptionError, match="the table has no row 'nut'; choose among net"):
        reproduce(PAPER, table(), TINY, "", rows=("nut",))
    with pytest.raises(OptionError, match="the table has no column 'CPU'; choose among HEFT, "):
        reproduce(PAPER, table(), TINY, "", columns=("CPU",))


def test_an_interrupted_table_has_what_was_complete() -> None:
    begun: list[str] = []
    watcher = Watcher(on_phase=begun.append, should_stop=lambda: "net: Missing" in begun)
    found = reproduce(PAPER, table(), TINY, "", watcher=watcher)
    assert ([cell.column for cell in found.cells], found.is_complete) == (["HEFT"], False)


@pytest.mark.parametrize("recipe", [TransferTable(lambda _: random_problem(1, 10, 3), table()), EdgeCounts()])
def test_a_table_that_is_interrupted_while_a_policy_is_trained_ends_there(recipe: Recipe) -> None:
    begun: list[str] = []
    watcher = Watcher(on_phase=begun.append, should_stop=lambda: "training" in begun[-1])
    effort = Effort(budget_s=30.0, max_evaluations=20, num_seeds=3)
    paper = replace(PAPER, columns=("zero-shot",), rows={"zero-shot": (None,)})
    found = reproduce(paper, recipe, effort, "", watcher=watcher)
    assert (begun[1:], found.cells, found.is_complete) == (["zero-shot: training with seed 0"], (), False)


def test_the_progress_of_a_training_counts_its_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    point = CurvePoint(0, 1.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(unseen, "run_train", lambda *_, on_update, **__: on_update(point))
    unseen._train("enas", Path("unused.safetensors"), Effort(0.1), Watcher(on_step=steps.append))
    assert steps == ["update 1 of 2"]


def test_edges_are_counted_within_a_gpu_within_a_group_and_across_groups() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 4)]
    problem = ScheduleProblem.from_arrays(np.ones((5, 4)), edges)
    found = edges_by_link(problem, np.array([0, 0, 1, 2, 3]))
    assert found == {"same GPU": 1, "same group": 2, "across groups": 1}


def test_a_policy_moved_to_eight_gpus_has_all_edges_counted_before_and_after_it_learns() -> None:
    effort = Effort(budget_s=600.0, max_evaluations=20, num_seeds=1)
    table = PAPER_TABLES["doppler-10"]
    found = reproduce(table, RECIPES["doppler-10"], effort, "hsdag reproduce doppler-10")
    assert [cell.row for cell in found.cells] == ["zero-shot"] * 3 + ["2k-shot"] * 3
    total = len(build_problem("ffnn", "v100x8").edge_src)
    assert sum(cell.ours.value or 0.0 for cell in found.cells) == 2 * total


def test_behind_a_barrier_no_op_starts_before_its_whole_level_has_ended() -> None:
    problem = build_problem("chainmm", "p100x4")
    device = np.arange(problem.num_ops) % problem.num_devices
    level, run = levels(problem), simulate(with_barriers(problem), device)
    for depth in range(1, int(level.max()) + 1):
        assert run.start_s[level == depth].min() >= run.end_s[level == depth - 1].max()
    assert run.makespan_s > simulate(problem, device).makespan_s


def test_a_synchronous_system_is_slower_with_the_same_placement() -> None:
    found = dict(RECIPES["doppler-1"].row("ffnn", ("work-conserving", "synchronous"), TINY, Watcher()))
    assert (found["work-conserving"].value or np.inf) < (found["synchronous"].value or 0.0)


def test_costs_of_diviml_give_the_column_that_they_were_fitted_to() -> None:
    found = reproduce(PAPER_TABLES["diviml-1"], RECIPES["diviml-1"], TINY, "", rows=["1-chan"], columns=["HEFT"])
    assert found.cells[0].ours.value == pytest.approx(99.9, rel=0.1)


def test_a_batch_is_no_faster_than_the_bound_of_its_row() -> None:
    found = dict(BatchedThroughput().row("1-chan", ("best device", "UBound"), Effort(0.2), Watcher()))
    best, bound = found["best device"].value, found["UBound"].value
    assert best is not None
    assert bound is not None
    assert 0 < best <= bound


def test_solver_times_are_of_the_best_and_of_the_first_as_good_as_anothers() -> None:
    plans = Progress(1.0, 0.5, 3.0, ((0.1, 5.0), (1.0, 2.0), (3.0, 1.0)))
    assert (plans.seconds_to(2.0), plans.seconds_to(1.0), plans.seconds_to(0.9)) == (1.0, 3.0, np.inf)
    found = dict(SolverTimes().row("sdep, 1 modules", ("MILP", "MILP-SPLIT"), Effort(0.3), Watcher()))
    assert all(ours.value is not None and ours.value <= 2.0 for ours in found.values())


def test_statistics_are_those_of_the_graph_that_is_placed(tiny_resnet: Path) -> None:
    found = dict(GraphStatistics().row("tiny_resnet", ("nodes", "edges", "mean degree"), TINY, Watcher()))
    nodes = len(ov.Core().read_model(tiny_resnet).get_ordered_ops())
    assert found["nodes"].value == nodes
    assert found["mean degree"].value == pytest.approx((found["edges"].value or 0) / nodes)


def test_outputs_of_a_split_placement_are_those_of_the_cpu(tiny_bert: Path) -> None:
    platform = with_devices(load_platform("i9-12900k-uhd770-flex170"), ("CPU", "GPU.1"))
    problem = assumed_costs(tiny_bert, platform)
    solution = solve(problem, make_placer("random"), SolveOptions("random", max_evaluations=30))
    placement = solution.placement()
    names = list(placement.affinity)
    whole, placed = outputs_of(ov.Core().read_model(tiny_bert), on_two_cpu_devices(placement))
    assert len(names) == problem.num_ops
    assert np.abs(placed - whole).max() <= 1e-4 * np.abs(whole).max()


def test_recipes_say_what_differs_from_the_paper() -> None:
    assert all(isinstance(recipe, Recipe) and recipe.about.endswith(".") for recipe in RECIPES.values())
    reasons = [
        each.reason for table in SEARCHES.values() for each in table.settings.values() if isinstance(each, Absent)
    ]
    assert all(reasons)
