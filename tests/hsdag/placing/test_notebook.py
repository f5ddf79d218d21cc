"""Results as notebooks show them: a sentence and a table, simulated figures called so, names kept text."""

from __future__ import annotations

from html import escape

import hsdag
from hsdag.placing.result import PlaceResult
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

PROBLEM = ScheduleProblem.from_arrays(
    [[1e-3, 2e-3], [2e-3, 1e-3]], [(0, 1)], name="<b>", device_names=("<i>", "B"), op_names=("a", "b")
)


def test_a_placement_shows_its_sentence_and_the_comparison(kept_search: PlaceResult) -> None:
    html = kept_search._repr_html_()
    assert escape(kept_search.sentence) in html
    assert html.count("<tr") == 1 + len(kept_search.rows)
    assert html.count('class="chosen"') == 1


def test_a_solution_is_called_simulated_and_its_names_are_escaped() -> None:
    html = hsdag.solve(PROBLEM, "heft", budget="1s")._repr_html_()
    assert "SIMULATED &lt;b&gt;" in html
    assert "all on &lt;i&gt;" in html
    assert "<i>" not in html


def test_a_simulation_shows_what_devices_do() -> None:
    html = hsdag.simulate(PROBLEM, {"a": "<i>", "b": "<i>"})._repr_html_()
    assert "makespan 3 ms" in html
    assert "<td>&lt;i&gt;</td>" in html
