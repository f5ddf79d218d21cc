"""Which way of passing messages suits which learned method: the same plans for each encoder, several seeds; simulated.

All encoders have the same width and as many rounds. A method reads graphs by its own network otherwise; the RNN-based
method has none, its encoder is an LSTM. 'random' is the best of as many random placements.

    python benchmarks/encoders.py [--plans 1500] [--seeds 3] [--methods doppler,hsdag,gdp,placeto] [--graphs chainmm]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np
from machine import machine

from hsdag.commands.workload import build_problem
from hsdag.learning.encoders import ENCODERS
from hsdag.learning.hsdag import config as hsdag
from hsdag.learning.placeto import config as placeto
from hsdag.placers.registry import make_placer
from hsdag.reports import markdown_table
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve

NO_LIMIT_S = 3600.0
OWN = {"hsdag": (hsdag.OWN,), "placeto": (placeto.OWN,)}
"""Encoders that one method alone has."""


def figures(method: str, changes: Mapping[str, str], graph: str, plans: int, seeds: int) -> list[str]:
    """The mean of the best values over seeds, with its deviation, and the seconds of a search."""
    problem, found, elapsed_s = build_problem(graph, "p100x4"), [], 0.0
    for seed in range(seeds):
        placer = make_placer(method, changes=changes, is_cheap=True)
        options = SolveOptions(method, budget_s=NO_LIMIT_S, max_evaluations=plans, seed=seed)
        solution = solve(problem, placer, options)
        assert solution.value_s is not None
        found.append(1e3 * solution.value_s)
        elapsed_s += solution.elapsed_s
    deviation = np.std(found, ddof=1) if seeds > 1 else 0.0
    return [f"{np.mean(found):.2f}±{deviation:.2g}", f"{elapsed_s / seeds:.1f}"]


def main() -> None:
    """Print a table: a line per method and encoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=1500, help="plans of a search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="doppler,hsdag,gdp,placeto")
    parser.add_argument("--graphs", default="chainmm")
    parser.add_argument("--encoders", default=",".join(ENCODERS))
    options = parser.parse_args()
    print(f"{machine()}; best of {options.plans} plans on four P100, in ms, {options.seeds} seeds; seconds of a search")
    graphs, lines = options.graphs.split(","), []
    for method, encoder in [
        ("random", "-"),
        *((m, e) for m in options.methods.split(",") for e in (*options.encoders.split(","), *OWN.get(m, ()))),
    ]:
        changes = {} if encoder == "-" else {"encoder": encoder}
        cells = [cell for graph in graphs for cell in figures(method, changes, graph, options.plans, options.seeds)]
        lines.append([method, encoder, *cells])
        print(" ".join(lines[-1]), flush=True)
    heads = [head for graph in graphs for head in (graph, "s")]
    print(markdown_table(["method", "encoder", *heads], lines))


if __name__ == "__main__":
    main()
