"""What a policy that was learned on other problems is worth on problems not seen, and methods that learn on the problem
at hand beside their own draws without learning; all plans are simulated.

The problems were named before anything was trained: of the families trained on and of two others, numbers from
``FIRST`` on, DOPPLER's workloads in the units of its published graphs, and Llama's blocks in a row. Over what ``auto``
finds in --seconds without the policy, as geometric means with 95% intervals (bootstrap over problems and seeds):

- at_once: the policy's answer (bars: 1.12 on families trained on, 1.25 on others, 1 CPU second), the best list, random
  draws in a second, and the same decoder with --seeds sets of weights drawn at random (bar: 10% worse than the policy),
  and of zeros, after one round of schedules, four, and as many as take a second;
- trained: doppler and hsdag after a CPU second, beginning with the policies that come with hsdag (bars: TRAINED_BARS);
  beside them the same untrained, and trained with a learning rate of 0;
- auto: 3 CPU seconds with the policy over 10 without (bar: 1);
- alone: the five learned methods after --alone CPU seconds, over annealing of as many, and the same with a learning
  rate of 0 over them (bars: ALONE), with --seeds seeds, on the workloads of DOPPLER and --drawn graphs of six families;
- groups: HSDAG with every unit a group of its own, and with fixed groups, in which every unit joins the neighbour that
  it shares most bytes with, over HSDAG as it is, after --alone CPU seconds (bar: both intervals above 1); on --each
  graphs of at least 500 units of two kinds, with --seeds seeds;
- beam: ``beam`` and ``auto`` after --seconds CPU seconds over windows alone, on --each graphs of 10,000 ops of either
  family of ``deep_quality``.

Exit status 1 where a bar is missed. Several processes can share the problems: ``--part 1/2 --out 1.jsonl`` measures
every second one, and ``--read 1.jsonl --read 2.jsonl`` judges them all.

    python benchmarks/learned_quality.py [at_once trained auto alone groups beam] [--each 4] [--seconds 30] [--seeds 3]
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from auto_quality import WORKLOADS, published, solved
from deep_quality import chain, in_a_row, unlike
from machine import options
from scipy.stats import rankdata

from hsdag.base.errors import OptionError, SearchError
from hsdag.commands.sources import find_family, workload_problem
from hsdag.methods.auto.auto import LISTS
from hsdag.methods.learned.hsdag.network import HsdagConfig
from hsdag.methods.learned.hsdag.placer import GroupPolicy, HsdagPlacer
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.lists.rules import WEIGHTS, changed, shipped_rules
from hsdag.methods.policy_file import write_policy
from hsdag.methods.registry import make_placer
from hsdag.models.diviml import RandomWiring, random_wired
from hsdag.models.sharded_workloads import LlamaSizes
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

FIRST = 2_000_000
"""Problems from this number on are never trained on."""
TRAINED, OTHERS = ("random-wired", "transformer", "chain", "nmt", "llama"), ("enas", "ptb")
BLOCKS = (2, 4, 8)
DECODING_S, BAR_UNTRAINED, BAR_AUTO = 1.0, 1.10, 1.0
BARS = {"families trained on": 1.12, "others": 1.25}
FAMILIES = ("random-wired", "transformer", "chain", "nmt", "enas", "ptb")
"""Of the drawn graphs on which methods are judged alone."""
TRAINED_BARS = {"families trained on": 1.05, "others": 1.10}
"""Of learned methods that begin with a policy of other problems, over auto."""
OFF = {"learning_rate": "0", "last_learning_rate": "0"}
BEGINNINGS = {
    "trained": {"initial": "shipped"},
    "untrained": {},
    "trained, learning rate 0": {"initial": "shipped", **OFF},
}
ALONE = {"hsdag": (1.05, 1.25), "doppler": (1.02, 1.05), "placeto": (1.25, 1.0), "gdp": (1.25, 1.0), "rnn": (1.25, 1.0)}
"""Of a learned method: at most so many times annealing's value, at least so many times its own without learning."""
DRAWN = {"drawn weights": 1.0, "zero weights": 0.0}
"""Untrained policies: the standard deviation of their weights, in steps."""
ROUNDS = {", a round": {"rounds": "1"}, ", four rounds": {"rounds": "4"}, "": dict[str, str]()}
"""Of schedules, one by every rule, whose weights all but the first change; last as many as take a second."""
BEAM = {
    "beam": ("beam", {}),
    "beam: windows alone": ("windows", {}),
    "auto": ("auto", {}),
    "auto: windows alone": ("auto", {"without": "beam"}),
}
OWN_GROUPS = {"score_bias": "-60", "score_range": "none"}
"""Edges that are never kept."""
GROUPED_UNITS = 500
"""Units of a graph on which groups are judged, at least."""
PARTS = ("at_once", "trained", "auto", "alone", "groups", "beam")
SAMPLES, NOTHING_FOUND = 10_000, 10.0
"""Of the bootstrap; the ratio as which a search counts that found nothing, or nothing like it."""
Row = dict[str, Any]
"""The name of a problem, whether its family was trained on, and the figures found, several where seeds differ."""


def problems(each: int) -> dict[str, Callable[[], ScheduleProblem]]:
    """By name, the first word of which is the family."""
    found: dict[str, Callable[[], ScheduleProblem]] = {
        f"{name} {k}": partial(find_family(name).problem, FIRST + k)
        for name, k in itertools.product((*TRAINED, *OTHERS), range(each))
    }
    found |= {f"{name}, published": partial(published, name) for name in WORKLOADS}
    return found | {f"blocks of Llama, {num}": partial(chain, "p100x4", [LlamaSizes()] * num) for num in BLOCKS}


def drawn_policy(path: Path, seed: int, spread: float) -> str:
    """A policy file with rules drawn at random."""
    rules = changed(np.zeros_like(shipped_rules()), spread, np.random.default_rng(seed))
    rules[:, -1] = 1.0
    write_policy(path, {WEIGHTS: rules}, {"method": RULES})
    return str(path)


def value(problem: ScheduleProblem, method: str, seconds: float, seed: int = 0, **changes: str) -> float:
    """What a method finds; infinite where that is nothing, or the method is not for the problem."""
    try:
        return solved(problem, method, seconds, seed=seed, **changes)[1]
    except (OptionError, SearchError):
        return np.inf


def measured(name: str, problem: ScheduleProblem, given: Namespace, policies: dict[str, list[str]]) -> Row:
    """The row of a problem."""
    found, seconds = dict[str, list[float]](), given.seconds
    if "at_once" in given.parts:
        for how, rounds in ROUNDS.items():
            for kind, paths in policies.items():
                of_seeds = [value(problem, "rules", seconds, k, initial=path, **rounds) for k, path in enumerate(paths)]
                found[kind + how] = of_seeds
            begin_s = time.process_time()
            found["at once" + how] = [value(problem, "rules", seconds, **rounds)]
            answer_s = time.process_time() - begin_s
        found["lists"] = [min(value(problem, method, seconds) for method in LISTS)]
        found["random draws"] = [value(problem, "random", DECODING_S)]
    if "trained" in given.parts:
        for method, (how, changes) in itertools.product(("doppler", "hsdag"), BEGINNINGS.items()):
            of_seeds = [value(problem, method, DECODING_S, seed, **changes) for seed in range(given.seeds)]
            found[f"{method}, {how}"] = of_seeds
    auto_s = value(problem, "auto", seconds, without="rules") if found else 1.0
    found = {column: [each / auto_s for each in values] for column, values in found.items()}
    if "at_once" in given.parts:
        found["seconds"] = [answer_s]
    if "auto" in given.parts:
        without_s = value(problem, "auto", 10.0, without="rules")
        found["auto 3 s over 10 s without"] = [value(problem, "auto", 3.0) / without_s]
    return {"name": name, "is_trained": name.split()[0] in TRAINED, "ops": problem.num_ops, "found": found}


def judged_alone(drawn: int) -> dict[str, Callable[[], ScheduleProblem]]:
    """Where methods are judged alone, by name."""
    found: dict[str, Callable[[], ScheduleProblem]] = {name: partial(published, name) for name in WORKLOADS}
    drawn_ones = itertools.product(FAMILIES, range(drawn))
    return found | {f"{name} {k}": partial(find_family(name).problem, FIRST + k) for name, k in drawn_ones}


def alone(name: str, problem: ScheduleProblem, given: Namespace) -> Row:
    """What methods find in so many CPU seconds, by themselves and with a learning rate of 0."""
    learned = [method for method in ALONE if method in given.methods.split(",")]
    how = {"sa": ("sa", {}), "random": ("random", {}), **{method: (method, {}) for method in learned}}
    how |= {f"{method}, learning rate 0": (method, OFF) for method in learned}
    found = dict[str, list[float]]()
    for column, (method, changes) in how.items():
        found[column] = [value(problem, method, given.alone, seed, **changes) for seed in range(given.seeds)]
        print(f"{name}, {column}: {found[column]}", flush=True)
    return {"name": name, "alone": found}


def judge_alone(rows: list[Row]) -> bool:
    """Print what learning contributes; whether the bars are kept."""
    of = {column: np.array([row["alone"][column] for row in rows]) for column in rows[0]["alone"]}
    judged("random draws over annealing", of["random"] / of["sa"])
    kept = []
    for method, (most, least) in ALONE.items():
        if method not in of:
            continue
        ratios = of[method] / of["sa"]
        kept.append(judged(f"{method} over annealing", ratios, most))
        print(f"  worst: {ratios.mean(axis=1).max():.3f}, {rows[int(ratios.mean(axis=1).argmax())]['name']}")
        kept.append(
            judged(
                f"{method}, learning rate 0, over {method}", of[f"{method}, learning rate 0"] / of[method], least=least
            )
        )
    return all(kept)


class HeavyEdges(HsdagPlacer):
    """HSDAG with groups that are not learned: every unit joins the neighbour that it shares most bytes with."""

    def policy(self, problem: Problem, generator: torch.Generator) -> GroupPolicy:
        """The policy, whose edge scores are the ranks of bytes."""
        policy, costs = super().policy(problem, generator), problem.known_costs
        edges, u = policy.network.groupable, problem.num_units
        ends = np.sort(np.stack([costs.edge_src, costs.edge_dst]), axis=0)
        size = np.bincount(ends[0] * u + ends[1], costs.edge_bytes, u * u)[edges.left * u + edges.right]
        score = torch.tensor(rankdata(size, "dense") / max(len(size), 1), dtype=torch.float32)
        view = policy.network.view
        policy.network.view = lambda situation: view(situation)._replace(score_logits=score)  # type: ignore[method-assign]
        return policy


def grouped(each: int) -> dict[str, ScheduleProblem]:
    """Graphs of at least ``GROUPED_UNITS`` units, by name."""
    found = dict[str, ScheduleProblem]()
    for k in range(each):
        found[f"transformers {k}"] = in_a_row(unlike("transformers", GROUPED_UNITS, 1000 * k))
        wiring = RandomWiring("ws", 32, modules=20, channels=2, seed=FIRST + k)
        found[f"wired {k}"] = workload_problem(random_wired(wiring), load_platform("p100x4"))
    return found


def groups(given: Namespace) -> bool:
    """Print what learned groups are worth to HSDAG; whether the bars are kept."""
    found = dict[str, list[list[float]]]()
    for name, problem in grouped(given.each).items():
        placers = {
            "parsing": make_placer("hsdag", is_cheap=True),
            "every unit by itself": make_placer("hsdag", changes=OWN_GROUPS, is_cheap=True),
            "heavy edges": HeavyEdges(replace(HsdagConfig.default(is_cheap=True), sampled_parsing=False)),
        }
        for kind, placer in placers.items() if given.only in name else ():
            searches = [SolveOptions("hsdag", budget_s=given.alone, seed=seed) for seed in range(given.seeds)]
            values = [solve(problem, placer, search).value or np.inf for search in searches]
            found.setdefault(kind, []).append(values)
            print(f"{name}, {problem.num_ops} units, {kind}: {values}", flush=True)
    learned = np.array(found.pop("parsing"))
    kept = [judged(f"{kind}, over parsing", np.array(values) / learned, least=1.0) for kind, values in found.items()]
    return all(kept)


def beam(given: Namespace) -> None:
    """Print what beam search contributes to searches of so many CPU seconds."""
    found = dict[str, list[list[float]]]()
    for k, family in itertools.product(range(given.each), ("transformers", "wired")):
        problem = in_a_row(unlike(family, 10_000, 1000 * k))
        for name, (method, changes) in BEAM.items() if given.only in f"{family} {k}" else ():
            values = [value(problem, method, given.seconds, seed, **changes) for seed in range(given.seeds)]
            found.setdefault(name, []).append(values)
            print(f"{family} {k}, {name}: {values}", flush=True)
    for name in ("beam", "auto"):
        judged(f"{name} over windows alone", np.array(found[name]) / found[f"{name}: windows alone"])


def judged(name: str, ratios: np.ndarray, most: float = np.inf, least: float | None = None) -> bool:
    """Print the mean of ratios [problems, seeds]; whether it is at most ``most``, or the interval above ``least``."""
    logs, rng = np.log(np.minimum(ratios, NOTHING_FOUND)), np.random.default_rng(0)
    samples = [
        logs[rng.integers(len(logs), size=len(logs))][:, rng.integers(logs.shape[1], size=logs.shape[1])].mean()
        for _ in range(SAMPLES)
    ]
    (low, high), middle = np.exp(np.quantile(samples, (0.025, 0.975))), float(np.exp(logs.mean()))
    bar = f", bar {most}" if np.isfinite(most) else "" if least is None else f", bar {least}"
    print(f"{name:55s} {middle:.3f} [{low:.3f}, {high:.3f}] over {len(ratios)}{bar}", flush=True)
    return middle <= most if least is None else middle >= least and low > 1.0


def judge(rows: list[Row]) -> bool:
    """Print the means of all columns over all problems; whether the bars are kept."""
    kept, is_trained = [], np.array([row["is_trained"] for row in rows])
    for column in dict.fromkeys(column for row in rows for column in row["found"]):
        ratios = np.array([row["found"][column] for row in rows if column in row["found"]])
        if column == "seconds":
            print(f"{'CPU seconds of an answer at once, most':55s} {ratios.max():.2f}, bar {DECODING_S}")
            kept.append(float(ratios.max()) <= DECODING_S)
        elif column.startswith("auto"):
            kept.append(judged(column, ratios, BAR_AUTO))
        else:
            for kind, which in (("families trained on", is_trained), ("others", ~is_trained)):
                bar = BARS[kind] if column.startswith("at once") else np.inf
                bar = TRAINED_BARS[kind] if column.endswith(", trained") else bar
                is_kept = not which.any() or judged(f"{column}, {kind}", ratios[which], bar)
                kept += [is_kept] if np.isfinite(bar) else []
            kind, comma, how = column.partition(",")
            if kind in DRAWN:
                at_once = np.array([row["found"]["at once" + comma + how] for row in rows])
                is_worse = judged(f"{column} over the policy", ratios / at_once, least=BAR_UNTRAINED)
                kept += [is_worse] if kind == "drawn weights" else []
            elif how and kind in ("doppler", "hsdag") and how != " trained":
                trained = np.array([row["found"][f"{kind}, trained"] for row in rows])
                for whose, which in (("families trained on", is_trained), ("others", ~is_trained)):
                    if which.any():
                        judged(f"{column} over trained, {whose}", (ratios / trained)[which])
    print(f"{sum(kept)} of {len(kept)} bars are kept")
    return all(kept)


def main() -> int:
    given = options(
        __doc__,
        PARTS,
        each=(4, "problems of each family"),
        seconds=(30.0, "CPU seconds of a search of auto"),
        alone=(10.0, "CPU seconds of a search of a learned method, and of its rivals"),
        methods=(",".join(ALONE), "learned methods that are judged alone"),
        drawn=(2, "graphs of each family on which learned methods are judged alone"),
        seeds=(3, "of weights drawn at random, and of learned methods"),
        only=("", "problems whose name contains this"),
        part=("1/1", "which of how many parts of the problems"),
        out=(None, "file that a line is added to for each problem"),
        read=(list[str](), "file of such lines, which are judged with nothing measured; repeatable"),
    )
    time.monotonic = time.process_time  # so that searches spend CPU seconds
    print("all figures SIMULATED")
    rows = [json.loads(line) for path in given.read for line in Path(path).read_text().splitlines()]
    number, count = map(int, given.part.split("/"))
    with tempfile.TemporaryDirectory() as folder:
        policies = {
            kind: [drawn_policy(Path(folder, f"{kind}-{seed}"), seed, spread) for seed in range(given.seeds)]
            for kind, spread in DRAWN.items()
        }
        chosen = list[tuple[str, Callable[[], ScheduleProblem], Callable[[str, ScheduleProblem], Row]]]()
        if not rows and {*given.parts} & {"at_once", "trained", "auto"}:
            row_of = partial(measured, given=given, policies=policies)
            chosen += [(*each, row_of) for each in problems(given.each).items()]
        if not rows and "alone" in given.parts:
            chosen += [(*each, partial(alone, given=given)) for each in judged_alone(given.drawn).items()]
        for name, make, row_of in [each for each in chosen if given.only in each[0]][number - 1 :: count]:
            rows.append(row_of(name, make()))
            if given.out is not None:
                with Path(given.out).open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    by_itself, rows = [row for row in rows if "alone" in row], [row for row in rows if "alone" not in row]
    for row in sorted(rows, key=lambda row: row["name"]):
        figures = (f"{column} {'/'.join(f'{each:.3f}' for each in found)}" for column, found in row["found"].items())
        print(f"{row['name']:24s} {row['ops']:5d} ops  {'  '.join(figures)}")
    are_kept = not rows or judge(rows)
    are_kept &= not by_itself or judge_alone(by_itself)
    if "groups" in given.parts:
        are_kept &= groups(given)
    if "beam" in given.parts:
        beam(given)
    return 0 if are_kept else 1


if __name__ == "__main__":
    sys.exit(main())
