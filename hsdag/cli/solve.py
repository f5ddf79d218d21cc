"""``hsdag solve``: a method on a problem file, no model needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hsdag import api
from hsdag.cli import options
from hsdag.cli.files import check_files, write_learning_curve, write_timeline
from hsdag.cli.output import milliseconds, print_json, print_members, print_table, say, show_semantics
from hsdag.ir.errors import OptionError, OutputError

if TYPE_CHECKING:
    from hsdag.commands.batched import BatchSolution
    from hsdag.reports import CurvePoint
    from hsdag.runtime.simulator import Simulation
    from hsdag.search.solution import Solution, SolveResult

SCHEDULE_SHOWN = 40
"""Ops up to which the table is the schedule; of more it is the load of each device."""


def solve(
    problem: options.ProblemFile,
    method: options.Method = "auto",
    objective: options.Objective = "latency",
    execution: options.Execution = "work-conserving",
    order: options.Order = None,
    links: options.Links = "independent",
    preset: options.Preset = "default",
    changes: options.Settings = None,
    init: options.Init = None,
    start: options.Start = None,
    budget: str = typer.Option("10s", "--budget", help="Search time: 10s, 5m, 1h."),
    max_evaluations: int | None = typer.Option(None, "--max-evaluations", help="End after N placements."),
    seed: int = typer.Option(0, "--seed", help="Seed of the search and of --order random."),
    workers: options.Workers = None,
    pins: options.Pins = None,
    memory: options.Memory = None,
    batch: int | None = typer.Option(None, "--batch", help="Divide N inputs over devices, in batches."),
    fixed_share: float = typer.Option(0.0, "--fixed-share", help="Share of an op's time that every batch takes."),
    output: Path | None = typer.Option(None, "--output", "-o", help="Write the placement: FILE.json."),
    trace: options.Trace = None,
    gantt: options.Gantt = None,
    curve: options.Curve = None,
    as_json: options.Json = False,
) -> None:
    """Search for a placement of a problem file; every figure is simulated."""
    if batch is not None or fixed_share:
        writes = output or trace or gantt or curve
        others = {"--init": init, "--start": start, "--workers": workers, "--pin": pins, "--memory": memory,
                  "--set": changes, "--max-evaluations": max_evaluations, "--order": order,
                  "--output, --trace, --gantt or --curve": writes,
                  "--preset": None if preset == "default" else preset}  # fmt: skip
        _refuse_beside_batch(batch, objective, execution, links, [name for name, value in others.items() if value])
        _solve_batch(problem, method, 1 if batch is None else batch, fixed_share, budget, seed, as_json)
        return
    from hsdag.cli.progress import SearchProgress
    from hsdag.placers.registry import parse_changes
    from hsdag.runtime.problems.objectives import find_objective
    from hsdag.search.options import parse_duration

    if curve is not None and workers is not None:
        raise OptionError("--curve does not go with --workers, whose processes learn apart; leave one of them out")
    check_files([output, trace, gantt, curve], [problem], [gantt, curve])
    points: list[CurvePoint]
    budget_s, points = parse_duration(budget), []
    with SearchProgress(budget_s, text=find_objective(objective).text) as progress:
        solution = api.solve(
            problem,
            method,
            objective=objective,
            execution=execution,
            order=order,
            links=links,
            preset=preset,
            settings=parse_changes(changes or ()),
            init=init,
            start=start,
            budget=budget_s,
            max_evaluations=max_evaluations,
            seed=seed,
            workers=workers,
            pins=pins or (),
            memory=memory,
            watcher=progress.watcher,
            on_update=points.append if curve is not None else None,
            on_better=None if output is None else partial(_keep, output),
        )
    write_timeline(solution.timeline, trace, gantt)
    value = solution.options.objective.value_name.replace("_", ", ")
    write_learning_curve(points, f"{method} on {solution.problem.name} (simulated)", value, curve)
    if output is not None and solution.affinity is not None:
        solution.placement().save(output)
    if solution.problem.devices and execution == "work-conserving":
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


def _refuse_beside_batch(batch: int | None, objective: str, execution: str, links: str, others: Sequence[str]) -> None:
    """Batches are divided in one way, in this process, and simulated. Raises OptionError for ``others`` and such."""
    if batch is None:
        raise OptionError("--fixed-share describes batches; give --batch too")
    given = [("--execution", execution, ["work-conserving"]), ("--links", links, ["independent"])]
    given += [("--objective", objective, ["latency", "throughput"])]
    others = [*others, *(f"{name} {value}" for name, value, known in given if value not in known)]
    if others:
        raise OptionError(
            f"{others[0]} does not go with --batch, which divides inputs over devices and simulates work-conserving "
            "schedules; it takes --method, --fixed-share, --budget, --seed and --json"
        )


def _solve_batch(
    problem: Path, method: str, batch: int, fixed_share: float, budget: str, seed: int, as_json: bool
) -> None:
    from hsdag.cli.progress import SearchProgress
    from hsdag.commands.batched import BatchOptions, solve_batched
    from hsdag.runtime.problems.problem_file import read_problem
    from hsdag.search.options import parse_duration

    wanted = BatchOptions(method, batch, fixed_share, parse_duration(budget), seed)
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
    from hsdag.search.result import Member

    if solution.run is not None:
        _show_schedule(solution, solution.run)
    _show_value(solution, solution.objective.label, "placement")
    for name, value in solution.single_s.items():
        note = ", which breaks a pin" if name in solution.breaking else ""
        typer.echo(f"All on {name}: {solution.objective.text(value)}{note}")
    print_members([Member.of(each) for each in solution.contributions], solution.objective)
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
