"""What a policy that was learned on other problems is worth on problems not seen; all plans are simulated.

The problems were named before anything was trained: of the families trained on and of two others, numbers from
``FIRST`` on, DOPPLER's workloads in the units of its published graphs, and Llama's blocks in a row. Over what ``auto``
finds in --seconds without the policy, as geometric means with 95% intervals: the answer of the policy at once (bars:
1.12 on families trained on, 1.25 on others), the best list scheduler, random draws in as many seconds, the same decoder
with weights drawn at random (bar: 10% worse than the policy) and with those that training begins with; DOPPLER and
HSDAG after --tuned seconds (bar: 1.05), and ``auto`` after 3 s with the policy over 10 s without (bar: 1). Last,
Placeto, GDP and RNN over random draws on DOPPLER's workloads (bar: the interval is below 1). Exit status 1 where a bar
is missed.

    python benchmarks/learned_quality.py [--each 3] [--seconds 30] [--tuned 10] [--only at-once,tuned,auto,units]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from auto_quality import WORKLOADS, published
from deep_quality import chain
from machine import machine
from scipy import stats

from hsdag.ir.errors import OptionError, SearchError
from hsdag.methods.lists.parsing import Layer, layer_weights
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.lists.rules import SHIPPED, STEP, WEIGHTS, read_rules
from hsdag.methods.portfolio.auto import LISTS
from hsdag.methods.registry import make_placer
from hsdag.models.sharded_workloads import LlamaSizes
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.policy_file import write_policy
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from hsdag.sources import find_family
from hsdag.training.rules import first_rule

FIRST = 2_000_000
"""Problems from this number on are never trained on."""
TRAINED, OTHERS = ("random-wired", "transformer", "chain", "nmt", "llama"), ("enas", "ptb")
BLOCKS = (2, 4, 8)
DECODING_S, BAR_TRAINED, BAR_OTHERS, BAR_UNTRAINED, BAR_TUNED = 1.0, 1.12, 1.25, 1.10, 1.05
RIVALS = ("doppler", "hsdag")


def problems(each: int) -> dict[str, tuple[bool, ScheduleProblem]]:
    """By name, and whether the family was trained on."""
    found = {
        f"{name} {k}": (name in TRAINED, find_family(name).problem(FIRST + k))
        for name in (*TRAINED, *OTHERS)
        for k in range(each)
    }
    found |= {f"{name}, published": (False, published(name)) for name in WORKLOADS}
    return found | {f"{num} Llama blocks": (False, chain("p100x4", [LlamaSizes()] * num)) for num in BLOCKS}


def drawn_policy(path: Path, rng: np.random.Generator, begin: float) -> Path:
    """A policy file with a parsing network and rules drawn at random, around ``begin`` times the first rule."""
    rules, layers = read_rules(SHIPPED)
    drawn = [Layer(*(rng.standard_normal(part.shape) * len(part) ** -0.5 for part in layer)) for layer in layers]
    own = begin * first_rule() + STEP * rng.standard_normal(rules.shape)
    own[:, -2] = 1.0
    write_policy(path, {WEIGHTS: own} | layer_weights(drawn), {"method": RULES})
    return path


def value(problem: ScheduleProblem, method: str, seconds: float, seed: int = 0, **changes: str) -> float:
    """What a method finds; infinite where that is nothing, or the method is not for the problem."""
    try:
        placer = make_placer(method, changes=changes, is_cheap=True)
        found = solve(problem, placer, SolveOptions(method, budget_s=seconds, seed=seed)).value_s
    except (OptionError, SearchError):
        found = None
    return np.inf if found is None else found


def answer_s(problem: ScheduleProblem) -> float:
    """CPU seconds in which the policy decodes its schedules, and has them simulated."""
    units, placer = problem_of(problem), make_placer("rules", is_cheap=True)
    placer.prepare(units, takes_order=True)
    evaluator, begin_s = ScheduleEvaluator.of(units), time.process_time()
    placer.search(units, evaluator)
    return time.process_time() - begin_s


def measured(problem: ScheduleProblem, given: argparse.Namespace, policies: dict[str, Path]) -> dict[str, float]:
    """Values over what ``auto`` finds without the policy; and the seconds of an answer at once."""
    parts, found, seconds = given.only.split(","), dict[str, float](), given.seconds
    if "at-once" in parts:
        found["at once"] = value(problem, "rules", seconds)
        found |= {name: value(problem, "rules", seconds, initial=str(path)) for name, path in policies.items()}
        found["lists"] = min(value(problem, method, seconds) for method in LISTS)
        found["random"] = value(problem, "random", DECODING_S)
    if "tuned" in parts:
        found |= {f"{method} tuned": value(problem, method, given.tuned) for method in RIVALS}
    auto_s = value(problem, "auto", seconds, without="rules") if found else 1.0
    found = {name: each / auto_s for name, each in found.items()}
    if "at-once" in parts:
        found["seconds"] = answer_s(problem)
    if "auto" in parts:
        found["auto 3 s over 10 s without"] = value(problem, "auto", 3.0) / value(
            problem, "auto", 10.0, without="rules"
        )
    return found


def mean(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean and its 95% interval, by Student's t of the logarithms."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return float(np.exp(logs.mean())), float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def judged(name: str, ratios: Sequence[float], bar: float = np.inf, *, is_least: bool = False) -> bool:
    """Print the mean of a column, and whether it keeps its bar, which an untrained policy has to exceed."""
    middle, low, high = mean(ratios)
    print(f"{name:60s} {middle:.3f} [{low:.3f}, {high:.3f}]" + (f", bar {bar}" if np.isfinite(bar) else ""), flush=True)
    return middle >= bar and low > 1.0 if is_least else middle <= bar


def judge(found: dict[str, dict[str, float]], is_trained: dict[str, bool]) -> bool:
    """Print the means of all columns over all problems; whether the bars are kept."""
    columns, kept = {name: np.array([row[name] for row in found.values()]) for name in next(iter(found.values()))}, []
    of_trained = np.array([is_trained[name] for name in found])
    for name, ratios in columns.items():
        if name == "at once":
            kept.append(judged("at once, families trained on", ratios[of_trained], BAR_TRAINED))
            kept.append(judged("at once, others", ratios[~of_trained], BAR_OTHERS))
            untrained = "untrained over trained"
            kept.append(judged(untrained, columns["drawn weights"] / ratios, BAR_UNTRAINED, is_least=True))
        elif name == "seconds":
            print(f"{'CPU seconds of an answer at once, most':60s} {ratios.max():.2f}")
        elif name.endswith("tuned"):
            kept.append(judged(name, ratios, BAR_TUNED))
        elif name.startswith("auto"):
            kept.append(judged(name, ratios, 1.0))
        else:
            judged(f"{name}, families trained on", ratios[of_trained])
            judged(f"{name}, others", ratios[~of_trained])
    return all(kept)


def units(seconds: float, seeds: int) -> bool:
    """Whether Placeto, GDP and RNN, without annealing, are ahead of random draws on DOPPLER's four workloads.

    Beside them, the same without a policy that was learned on other problems.
    """
    kept = True
    for name in WORKLOADS:
        problem, ratios = published(name), dict[str, list[float]]()
        for seed in range(seeds):
            drawn = value(problem, "random", seconds, seed)
            for method in ("placeto", "gdp", "rnn"):
                for taught, column in (("true", method), ("false", f"{method} alone")):
                    found = value(problem, method, seconds, seed, polish="0", begins_taught=taught)
                    ratios.setdefault(column, []).append(found / drawn)
        for column, each in ratios.items():
            middle, low, high = mean(each)
            print(f"{name}: {column} over random draws {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)
            kept &= high < 1.0 or column.endswith("alone")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=3, help="problems of each family")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a search of auto")
    parser.add_argument("--tuned", type=float, default=10.0, help="seconds of a search of DOPPLER and HSDAG")
    parser.add_argument("--seeds", type=int, default=3, help="of Placeto, GDP and RNN")
    parser.add_argument("--only", default="at-once,tuned,auto,units")
    given = parser.parse_args()
    print(machine(), "all figures SIMULATED", sep="\n")
    kept, found, is_trained = True, dict[str, dict[str, float]](), dict[str, bool]()
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        policies = {
            name: drawn_policy(Path(folder) / f"{i}.safetensors", rng, begin)
            for i, (name, begin) in enumerate((("drawn weights", 0.0), ("weights around the first rule", 1.0)))
        }
        for name, (trained, problem) in problems(given.each).items():
            if set(given.only.split(",")) - {"units"}:
                found[name], is_trained[name] = measured(problem, given, policies), trained
                row = "  ".join(f"{column} {ratio:.3f}" for column, ratio in found[name].items())
                print(f"{name:24s} {problem.num_ops:5d} ops on {problem.num_devices}  {row}", flush=True)
    kept = judge(found, is_trained) if found else True
    if "units" in given.only:
        kept &= units(given.tuned, given.seeds)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
