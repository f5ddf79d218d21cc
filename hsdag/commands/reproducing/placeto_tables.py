"""Recipes of Placeto's comparisons."""

from __future__ import annotations

from hsdag.commands.profile import assumed_costs
from hsdag.commands.reproducing.base import Recipe
from hsdag.commands.reproducing.searches import Search, SearchTable, in_milliseconds
from hsdag.commands.reproducing.unseen import UnseenGraphs
from hsdag.commands.workload import build_problem
from hsdag.models import build_model, is_workload
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links, Semantics


def _on_four_gpus(name: str) -> ScheduleProblem:
    """A workload or a model of the zoo on four P100."""
    if is_workload(name):
        return build_problem(name, "p100x4")
    return assumed_costs(build_model(name), load_platform("p100x4"), name=name)


RECIPES: dict[str, Recipe] = {
    "placeto-1": SearchTable(
        _on_four_gpus,
        {
            "Placeto": Search("placeto"),
            "RNN-based": Search("rnn"),
            "best device": Search("best-device"),
            "min-cut": Search("mincut"),
        },
        "The paper's figures are of training TensorFlow graphs on K80 GPUs and are not in this repository. Here "
        "inferences of the zoo's model and of random graphs like Placeto's are simulated on four P100, each with one "
        "outgoing bus, as in Placeto's simulator.",
        in_milliseconds,
        semantics=Semantics(links=Links.EGRESS),
    ),
    "placeto-2": UnseenGraphs(),
}
