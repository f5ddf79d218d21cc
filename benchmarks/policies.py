"""The problems that learned rules are judged on, and which of them are of families that it was trained on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from hsdag.commands.families import ALL, find_family, list_families
from hsdag.evaluators.policy_file import read_policy
from hsdag.ir.placement import write_atomically
from hsdag.policies import SHIPPED
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

FIRST = 2_000_000
"""Problems from this number on are neither trained on nor judged in training."""


@dataclass(frozen=True)
class Graph:
    """A problem of families, by number; ``is_trained`` says whether the policy was trained on its families."""

    families: str
    number: int
    is_trained: bool

    @property
    def problem(self) -> ScheduleProblem:
        """Always the same."""
        return find_family(self.families).problem(FIRST + self.number)

    @property
    def name(self) -> str:
        """As a file name."""
        return f"{self.families.replace(',', '+')}-{self.number}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of benchmarks of a policy."""
    parser.add_argument("--policy", type=Path, help="what 'hsdag train' wrote; default: the one that ships")
    parser.add_argument("--trained", help="families it was trained on, joined by commas; default: its card's")
    parser.add_argument("--others", help="families it was not trained on; default: all the others")
    parser.add_argument("--graphs", type=int, default=100, help="problems of the first")
    parser.add_argument("--other-graphs", type=int, default=50, help="problems of the others")
    parser.add_argument("--seconds", type=float, default=10.0, help="of auto")
    parser.add_argument("--folder", type=Path, help="keeps what was computed, so that a run can go on after an end")


def graphs(options: argparse.Namespace) -> list[Graph]:
    """Those that the options choose; the shipped policy goes into the options where none is given."""
    options.policy = options.policy or SHIPPED
    trained = options.trained or str(read_policy(options.policy, "rules").card["family"])
    known = [each.name for each in list_families() if each.name != "zoo"] if trained == ALL else trained.split(",")
    others = options.others or ",".join(each.name for each in list_families() if each.name not in known)
    chosen = [(trained, options.graphs, True), (others, options.other_graphs, False)]
    return [Graph(names, number, known) for names, count, known in chosen if names for number in range(count)]


def cached(folder: Path | None, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was computed before under a name, else computed and kept; without a folder nothing is kept."""
    if folder is None:
        return compute()
    path = folder / f"{name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(compute()).encode())
    return dict(json.loads(path.read_text()))


def mean(values: Sequence[float]) -> str:
    """The mean and its 95% interval by Student's t."""
    if len(values) < 2:
        return f"{np.mean(values):.3f}" if len(values) else "-"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.3f} ±{half:.3f}"
