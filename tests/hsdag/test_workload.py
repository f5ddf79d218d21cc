"""Problem files of workloads: what they hold, and what the command line refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.cli.app import run
from hsdag.commands.sources import build_problem
from hsdag.models import find_workload
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.runtime.problem.schedule_problem import CostSource

BUILD = ("models", "build")


def test_the_file_holds_the_workload_with_its_labels_and_analytic_costs(tmp_path: Path) -> None:
    path = tmp_path / "chainmm.problem.json"
    assert run([*BUILD, "chainmm", "--devices", "4", "--platform", "p100x4", "-o", str(path)]) == 0
    problem, workload = read_problem(path), find_workload("chainmm").build(4)
    assert problem.source is CostSource.ANALYTIC
    assert problem.op_names == workload.graph.op_names
    assert (problem.labels.meta_ops, problem.labels.roles) == (workload.meta_ops, workload.roles)
    assert problem.labels.expressions == workload.expressions
    assert np.array_equal(problem.edge_bytes, workload.graph.edge_bytes)
    assert problem.device_names == ("gpu0", "gpu1", "gpu2", "gpu3")


def test_inputs_are_free_and_a_product_takes_its_roofline() -> None:
    problem = build_problem("chainmm", "p100x4")
    assert problem.time_s[problem.index_of["A[0,0]"], 0] == 0
    flops = 2 * 2500 * 5000 * 5000  # a tile of A B: [2500, 5000] times [5000, 5000]
    expected_s = flops / (0.7 * 10.6e12) + 5e-6  # the platform file's efficiency, peak and overhead
    assert problem.time_s[problem.index_of["AB[0,0,0]"], 0] == pytest.approx(expected_s)


def test_rwnns_run_on_the_platform_of_diviml_about_as_much_slower_as_in_its_table_ii() -> None:
    total_s = build_problem("random-wired[family=er]").time_s.sum(axis=0)
    assert total_s[0] / total_s[2] == pytest.approx(7.10, rel=0.15)  # CPU against A100
    assert total_s[1] / total_s[2] == pytest.approx(1.26, rel=0.15)  # T4 against A100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("resnet50[seed=4] -o x.json", "the zoo has no model 'resnet50[seed=4]'"),
        ("resnet50 --platform p100x4 -o x.xml", "--platform is for workloads"),
        ("chainmm --platform p100 -o x.json", "no platform is called 'p100', perhaps 'p100x4'; choose one of"),
        ("chainmm[devices=3] -o x.json", "chainmm over 3 devices: axis 0 of A has 10000 elements"),
        ("chainmm[devices=5] -o x.json", "devices must lie in 1..4, those of platform p100x4, not 5"),
        ("chain[seed=1;devices=2] --devices 4 -o x.json", "devices is given twice"),
        ("chainmm -o x.xml", "must end in .json"),
        ("chainmm -o absent/x.json", "there is no folder absent"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2(
    arguments: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*BUILD, *arguments.split()]) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
