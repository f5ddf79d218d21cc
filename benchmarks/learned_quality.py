"""What a policy that was learned on other problems is worth on problems not seen; all plans are simulated.

The problems were named before anything was trained: of the families trained on and of two others, numbers from
``FIRST`` on, DOPPLER's workloads in the units of its published graphs, and Llama's blocks in a row. Over what ``auto``
finds in --seconds without the policy, as geometric means with 95% intervals (bootstrap over problems and seeds):

- at_once: the policy's answer (bars: 1.12 on families trained on, 1.25 on others, 1 CPU second), the best list, random
  draws in a second, and the same decoder with --seeds sets of weights drawn at random (bar: 10% worse than the policy),
  and of zeros, after one round of schedules, four, and as many as take a second;
- tuned: DOPPLER and HSDAG after --tuned seconds (bar: 1.05); auto: 3 s with the policy over 10 s without (bar: 1);
- units: Placeto, GDP and RNN without annealing over random draws on DOPPLER's workloads, with what the policy answers
  and without (bar, with it: below 1 with every seed);
- coarsener: ``multilevel`` and ``auto`` after --seconds CPU seconds, with the parsing network over heavy edges, an
  untrained network and windows alone, on --each graphs of 10,000 ops of either family of ``deep_quality``.

Exit status 1 where a bar is missed. Several processes can share the problems: ``--part 1/2 --out 1.jsonl`` measures
every second one, and ``--read 1.jsonl --read 2.jsonl`` judges them all.

    python benchmarks/learned_quality.py [at_once tuned auto units coarsener] [--each 4] [--seconds 30] [--seeds 3]
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from auto_quality import WORKLOADS, published, solved
from deep_quality import chain, in_a_row, unlike
from machine import options

from hsdag.ir.errors import OptionError, SearchError
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.lists.rules import WEIGHTS, changed, shipped_rules
from hsdag.methods.local.multilevel import MultilevelOptions, MultilevelPlacer
from hsdag.methods.local.parsing import WIDTH
from hsdag.methods.portfolio.auto import LISTS
from hsdag.models.sharded_workloads import LlamaSizes
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.scoring.policy_file import read_policy, write_policy
from hsdag.sources import find_family
from hsdag.training.parsing import main as train_parsing

FIRST = 2_000_000
"""Problems from this number on are never trained on."""
TRAINED, OTHERS = ("random-wired", "transformer", "chain", "nmt", "llama"), ("enas", "ptb")
BLOCKS = (2, 4, 8)
DECODING_S, BAR_UNTRAINED, BAR_TUNED, BAR_AUTO = 1.0, 1.10, 1.05, 1.0
BARS = {"families trained on": 1.12, "others": 1.25}
DRAWN = {"drawn weights": 1.0, "zero weights": 0.0}
"""Untrained policies: the standard deviation of their weights, in steps."""
ROUNDS = {", a round": {"rounds": "1"}, ", four rounds": {"rounds": "4"}, "": dict[str, str]()}
"""Of schedules, one by every rule, whose weights all but the first change; last as many as take a second."""
PARTS = ("at_once", "tuned", "auto", "units", "coarsener")
SAMPLES = 10_000
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
    found, seconds, seeds = dict[str, list[float]](), given.seconds, range(given.seeds)
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
    if "tuned" in given.parts:
        found |= {f"{method} tuned": [value(problem, method, given.tuned)] for method in ("doppler", "hsdag")}
    auto_s = value(problem, "auto", seconds, without="rules") if found else 1.0
    found = {column: [each / auto_s for each in values] for column, values in found.items()}
    if "at_once" in given.parts:
        found["seconds"] = [answer_s]
    if "auto" in given.parts:
        without_s = value(problem, "auto", 10.0, without="rules")
        found["auto 3 s over 10 s without"] = [value(problem, "auto", 3.0) / without_s]
    if "units" in given.parts and name.endswith("published"):
        drawn_s = [value(problem, "random", given.tuned, seed) for seed in seeds]
        for method in ("placeto", "gdp", "rnn"):
            for taught, column in (("true", method), ("false", f"{method} alone")):
                how = {"polish": "0", "begins_taught": taught}
                own_s = [value(problem, method, given.tuned, seed, **how) for seed in seeds]
                found[f"{column} over random draws"] = (np.array(own_s) / drawn_s).tolist()
    return {"name": name, "is_trained": name.split()[0] in TRAINED, "ops": problem.num_ops, "found": found}


def coarsener(given: Namespace) -> None:
    """Print what the parsing network contributes to searches of so many CPU seconds."""
    time.monotonic, found = time.process_time, dict[tuple[str, str], list[list[float]]]()
    with tempfile.TemporaryDirectory() as folder:
        train_parsing(f"{folder}/untrained.safetensors", "0")
        untrained = {"initial": f"{folder}/untrained.safetensors", "least": 1e-6}  # all edges, by chance
        drawn = read_policy(Path(f"{folder}/untrained.safetensors"), "multilevel").weights
        weights = {name: 0 * each for name, each in drawn.items()}
        weights["score.layers.0.weight"][0, WIDTH] = weights["score.layers.1.weight"][0, 0] = 1.0  # of long transfers
        write_policy(Path(f"{folder}/heavy.safetensors"), weights, {"method": "multilevel"})
        heavy, none = ({"initial": f"{folder}/heavy.safetensors", "least": least} for least in (0.0, 1 - 1e-9))
        how = {"": {}, "heavy edges": heavy, "untrained": untrained, "no edges": none, "windows alone": None}
        alone = {"multilevel": ("windows", {}), "auto": ("auto", {"without": "multilevel"})}
        for k, family, method in itertools.product(range(given.each), ("transformers", "wired"), alone):
            problem = in_a_row(unlike(family, 10_000, 1000 * k))
            for name, changes in how.items() if given.only in f"{family} {k} {method}" else ():
                MultilevelPlacer.options_type = partial(MultilevelOptions, **changes or {})
                search, own = alone[method] if changes is None else (method, {})
                values = [value(problem, search, given.seconds, seed, **own) for seed in range(given.seeds)]
                found.setdefault((method, name), []).append(values)
                print(f"{family} {k}, {method}, {name or 'parsing network'}: {values}", flush=True)
    for (method, name), values in found.items():
        if name:
            judged(f"{method}: parsing network over {name}", np.array(found[method, ""]) / values)


def judged(name: str, ratios: np.ndarray, most: float = np.inf, least: float | None = None) -> bool:
    """Print the mean of ratios [problems, seeds]; whether it is at most ``most``, or the interval above ``least``."""
    logs, rng = np.log(ratios), np.random.default_rng(0)
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
        of_column = {row["name"]: np.array([row["found"][column]]) for row in rows if column in row["found"]}
        ratios = np.concatenate(list(of_column.values()))
        if column.endswith("over random draws"):
            for name, each in of_column.items():
                judged(f"{name}: {column}", each)
                kept += [] if "alone" in column else [float(each.max()) < 1.0]
        elif column == "seconds":
            print(f"{'CPU seconds of an answer at once, most':55s} {ratios.max():.2f}, bar {DECODING_S}")
            kept.append(float(ratios.max()) <= DECODING_S)
        elif column.startswith("auto") or column.endswith("tuned"):
            kept.append(judged(column, ratios, BAR_AUTO if column.startswith("auto") else BAR_TUNED))
        else:
            for kind, which in (("families trained on", is_trained), ("others", ~is_trained)):
                bar = BARS[kind] if column.startswith("at once") else np.inf
                is_kept = not which.any() or judged(f"{column}, {kind}", ratios[which], bar)
                kept += [is_kept] if np.isfinite(bar) else []
            kind, comma, how = column.partition(",")
            if kind in DRAWN:
                at_once = np.array([row["found"]["at once" + comma + how] for row in rows])
                is_worse = judged(f"{column} over the policy", ratios / at_once, least=BAR_UNTRAINED)
                kept += [is_worse] if kind == "drawn weights" else []
    print(f"{sum(kept)} of {len(kept)} bars are kept")
    return all(kept)


def main() -> int:
    given = options(
        __doc__,
        PARTS,
        each=(4, "problems of each family"),
        seconds=(30.0, "of a search of auto"),
        tuned=(10.0, "seconds of a search of DOPPLER and HSDAG, and of Placeto, GDP and RNN"),
        seeds=(3, "of weights drawn at random, and of Placeto, GDP and RNN"),
        only=("", "problems whose name contains this"),
        part=("1/1", "which of how many parts of the problems"),
        out=(None, "file that a line is added to for each problem"),
        read=(list[str](), "file of such lines, which are judged with nothing measured; repeatable"),
    )
    print("all figures SIMULATED")
    rows = [json.loads(line) for path in given.read for line in Path(path).read_text().splitlines()]
    number, count = map(int, given.part.split("/"))
    found = {} if rows or given.parts == ["coarsener"] else problems(given.each)
    chosen = {name: make for name, make in found.items() if given.only in name}
    with tempfile.TemporaryDirectory() as folder:
        policies = {
            kind: [drawn_policy(Path(folder, f"{kind}-{seed}"), seed, spread) for seed in range(given.seeds)]
            for kind, spread in DRAWN.items()
        }
        for name, make in list(chosen.items())[number - 1 :: count]:
            rows.append(measured(name, make(), given, policies))
            if given.out is not None:
                with Path(given.out).open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    for row in sorted(rows, key=lambda row: row["name"]):
        figures = (f"{column} {'/'.join(f'{each:.3f}' for each in found)}" for column, found in row["found"].items())
        print(f"{row['name']:24s} {row['ops']:5d} ops  {'  '.join(figures)}")
    are_kept = judge(rows)
    if "coarsener" in given.parts:
        coarsener(given)
    return 0 if are_kept else 1


if __name__ == "__main__":
    sys.exit(main())
