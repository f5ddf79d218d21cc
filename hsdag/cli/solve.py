"""``hsdag solve`` and ``hsdag simulate``: methods and placements on a problem file, no model needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag import api
from hsdag.cli import options
from hsdag.cli.files import check_files, write_learning_curve, write_timeline
from hsdag.cli.output import milliseconds, print_json, print_members, print_table, say, show_semantics
from hsdag.ir.errors import OptionError, OutputError

if TYPE_CHECKING:
    from hsdag.runtime.simulator.simulation import Simulation
    from hsdag.scoring.base import CurvePoint
    from hsdag.solving.batched import BatchSolution
    from hsdag.solving.simulate import SimulateResult
    from hsdag.solving.solution import Solution, SolveResult

COMMANDS = ("simulate", "solve")

BESIDE_BATCH = ("method", "objective", "budget", "seed")
"""What batches are searched with, too."""

SCHEDULE_SHOWN = 40
"""Ops up to which the table is the schedule; of more it is the load of each device."""


@options.takes(api.simulate)
def simulate(
    problem: options.ProblemFile,
    placement: Path = typer.Argument(help="A placement: {op name: device name}, or a file of hsdag place or solve."),
    trace: options.Trace = None,
    gantt: options.Gantt = None,
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Simulate a placement: makespan or period, load and peak memory of each device, transfers."""
    check_files([trace, gantt], [problem, placement], [gantt])
    answer = api.simulate(problem, placement, **given)
    write_timeline(answer.timeline, trace, gantt)
    if as_json:
        print_json(answer.document())
    else:
        _show_simulated(answer)


def _show_simulated(answer: SimulateResult) -> None:
    show_semantics(answer.problem.name, answer.semantics)
    print_table(None, *answer.table())
    typer.echo(answer.sentence())
    if answer.noise is not None:
        noise, objective = answer.noise, answer.objective
        shown = ", ".join(f"{key} {objective.figure(noise[key])}" for key in noise if key != "runs")
        unit = f", in {objective.shown_unit}" if objective.shown_unit else ""
        typer.echo(f"Over {noise['runs']} noisy runs{unit}: {shown}")
    for device in answer.over_memory:
        typer.echo(f"{device} holds more than its memory: this placement cannot run there.")


@options.takes(api.solve)
def solve(
    problem: options.ProblemFile,
    batch: int | None = typer.Option(None, "--batch", help="Divide N inputs over devices, in batches."),
    fixed_share: float = typer.Option(0.0, "--fixed-share", help="Share of an op's time that every batch takes."),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write the placement: FILE.json."),
    trace: options.Trace = None,
    gantt: options.Gantt = None,
    curve: options.Curve = None,
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Search for a placement of a problem file; every figure is simulated."""
    from hsdag.cli.progress import SearchProgress
    from hsdag.runtime.objectives import find_objective
    from hsdag.search.options import parse_duration

    if batch is not None or fixed_share:
        _refuse_beside_batch(batch, given, [output, trace, gantt, curve])
        _solve_batch(problem, 1 if batch is None else batch, fixed_share, given, as_json)
        return
    if curve is not None and given["workers"] is not None:
        raise OptionError("--curve does not go with --workers, whose processes learn apart; leave one of them out")
    check_files([output, trace, gantt, curve], [problem], [gantt, curve])
    points: list[CurvePoint] = []
    text = find_objective(given["objective"]).text
    with SearchProgress(parse_duration(given["budget"]), text=text) as progress:
        solution = api.solve(
            problem,
            **given,
            watcher=progress.watcher,
            on_update=points.append if curve is not None else None,
            on_better=None if output is None else partial(_keep, output),
        )
    write_timeline(solution.timeline, trace, gantt)
    value = solution.options.objective.value_name.replace("_", ", ")
    write_learning_curve(points, f"{given['method']} on {solution.problem.name} (simulated)", value, curve)
    if output is not None and solution.affinity is not None:
        solution.placement().save(output)
    if solution.problem.devices and given["execution"] == "work-conserving":
        say(
            "note: HETERO runs the submodels of a model one after another; --execution sequential comes close to that: "
            "ops run one after another, with a launch at every change of device instead of for every submodel"
        )
    if as_json:
        print_json(solution.document())
    else:
        _show(solution, output)


def _keep(output: Path, best: SolveResult) -> None:
    """Have the best so far on disk, where there is room for it: a search that is killed can start with it."""
    with suppress(OutputError):
        best.placement().save(output)


def _refuse_beside_batch(batch: int | None, given: Mapping[str, Any], outputs: Sequence[Path | None]) -> None:
    """Batches are divided in one way, in this process, and simulated. Raises OptionError for what says otherwise."""
    from hsdag.search.options import flag

    if batch is None:
        raise OptionError("--fixed-share describes batches; give --batch too")
    default = options.defaults(api.solve)
    others = [name for name, value in given.items() if name not in BESIDE_BATCH and value and value != default[name]]
    said = [f"{flag(name)} {given[name]}" if default[name] else flag(name) for name in others]
    said += [f"--objective {given['objective']}"] * (given["objective"] not in ("latency", "throughput"))
    said += ["--output, --trace, --gantt or --curve"] * any(outputs)
    if said:
        raise OptionError(
            f"{said[0]} does not go with --batch, which divides inputs over devices and simulates work-conserving "
            "schedules; it takes --method, --fixed-share, --budget, --seed and --json"
        )


def _solve_batch(problem: Path, batch: int, fixed_share: float, given: Mapping[str, Any], as_json: bool) -> None:
    from hsdag.cli.progress import SearchProgress
    from hsdag.runtime.problem.problem_file import read_problem
    from hsdag.search.options import parse_duration
    from hsdag.solving.batched import BatchOptions, solve_batched

    wanted = BatchOptions(given["method"], batch, fixed_share, parse_duration(given["budget"]), given["seed"])
    costs = read_problem(problem)
    with SearchProgress(wanted.budget_s) as progress:
        solution = solve_batched(costs, wanted, progress.watcher)
    if as_json:
        print_json(solution.document())
    else:
        _show_batch(solution)


def _show_batch(solution: BatchSolution) -> None:
    table, costs = solution.problem.batches, solution.problem.costs
    typer.echo(f"SIMULATED {costs.name}: {table.num_inputs} inputs in batches of {', '.join(map(str, table.sizes))}")
    typer.echo(f"Assumed: {solution.assumption}")
    if solution.schedule is not None:
        device = solution.schedule.device
        rows = [[name, str(int((device == d).any(axis=1).sum())), str(int((device == d).sum()) * table.group)]
                for d, name in enumerate(costs.device_names)]  # fmt: skip
        print_table(None, ["device", "batches", "inputs of ops"], rows)
    rate = f", {solution.inputs_per_s:.4g} inputs a second" if solution.inputs_per_s else ""
    _show_value(solution, "makespan", "schedule", rate)
    _show_ending(solution, f"{solution.options.method}:")


def _show_value(solution: Solution, name: str, answer: str, rate: str = "") -> None:
    text = solution.objective.text
    bound = f"lower bound {text(solution.lower_bound_s)} by {solution.bound.argument}"
    if solution.value_s is None or solution.gap is None:
        typer.echo(f"No {answer}; {bound}")
    else:
        gap = f"gap {100 * solution.gap:.4g}%"
        typer.echo(f"Simulated {name} {text(solution.value_s)}{rate}; {bound}, {gap}")


def _show_ending(solution: Solution, what: str) -> None:
    typer.echo(f"{what} {solution.elapsed_s:.1f} s; {solution.status.value}. {solution.status.sentence}")
    if solution.interrupted:
        typer.echo("The search was interrupted.")


def _show(solution: SolveResult, output: Path | None) -> None:
    if solution.run is not None:
        _show_schedule(solution, solution.run)
    _show_value(solution, solution.objective.label, "placement")
    for name, value in solution.single_s.items():
        note = ", which breaks a pin" if name in solution.breaking else ""
        typer.echo(f"All on {name}: {solution.objective.text(value)}{note}")
    print_members(solution.members, solution.objective)
    _show_ending(solution, f"{solution.options.method}: {solution.num_evaluations} placements evaluated in")
    if output is not None and solution.affinity is not None:
        typer.echo(f"The placement is in {output}")


def _show_schedule(solution: SolveResult, run: Simulation) -> None:
    import numpy as np

    problem = solution.problem
    names = problem.device_names
    show_semantics(problem.name, solution.semantics)
    if problem.num_ops > SCHEDULE_SHOWN:
        counts = np.bincount(run.device, minlength=len(names)).tolist()
        loads = zip(names, counts, run.busy_s.tolist(), strict=True)
        print_table(None, ["device", "ops", "busy ms"], [[name, str(n), milliseconds(s)] for name, n, s in loads])
        return
    times = zip(run.device.tolist(), run.start_s.tolist(), run.end_s.tolist(), strict=True)
    rows = sorted((start, end, v, d) for v, (d, start, end) in enumerate(times))
    cells = [[problem.op_names[v], names[d], milliseconds(start), milliseconds(end)] for start, end, v, d in rows]
    print_table(None, ["op", "device", "start ms", "end ms"], cells)
