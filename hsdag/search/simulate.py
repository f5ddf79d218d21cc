"""Simulate one placement of a problem, from the options and files of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hsdag.base.errors import FileFormatError, PlacementError, check_seed, chosen
from hsdag.base.files import parse_json, read_text
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.placement.placement import FORMAT_NAME, Placement
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.simulator.simulation import Simulation, simulate
from hsdag.runtime.simulator.values import simulated_values
from hsdag.runtime.timeline import Timeline
from hsdag.search.evaluators.memory import one_inference, over_memory
from hsdag.search.solution import InMemory, Simulated
from hsdag.search.solve import scaled


class SimulateResult(Simulated):
    """The simulated figures of a placement.

    Args:
        run: One simulated inference.
        value: Value in the unit of the objective.
        busy_s: Seconds in which each device computes, by device.
        peak_memory_bytes: Largest memory in use during the inference, by device.
        over_memory: Devices whose peak exceeds their memory.
        transfers: Number of transfers between devices.
        transfer_bytes: Bytes of all transfers together.

    Examples:
        >>> import hsdag
        >>> from hsdag.runtime.problem.schedule_problem import ScheduleProblem
        >>> problem = ScheduleProblem.from_arrays([[1.0], [4.0]], [(0, 1)], op_names=("a", "b"), device_names=("gpu",))
        >>> result = hsdag.simulate(problem, {"a": "gpu", "b": "gpu"})
        >>> result.table()[1]
        [['gpu', '2', '5000', '100.0', '0', '-']]
    """

    run: InMemory[Simulation]
    value: float
    busy_s: dict[str, float]
    peak_memory_bytes: dict[str, float]
    over_memory: tuple[str, ...]
    transfers: int
    transfer_bytes: float

    @property
    def timeline(self) -> Timeline:
        """Return the timeline of ``run``."""
        return self.run.timeline

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the column titles and cells of a table with the work and memory of each device."""
        run, problem = self.run, self.problem
        cells = [
            [
                name,
                str(int((run.device == d).sum())),
                f"{1e3 * run.busy_s[d]:.4g}",
                f"{100 * run.busy_s[d] / run.makespan_s:.1f}" if run.makespan_s else "-",
                rounded_megabytes(run.peak_memory_bytes[d]),
                rounded_megabytes(problem.memory_bytes[d]) if np.isfinite(problem.memory_bytes[d]) else "-",
            ]
            for d, name in enumerate(problem.device_names)
        ]
        return ["device", "ops", "busy ms", "busy %", "peak MB", "memory MB"], cells

    @property
    def sentence(self) -> str:
        """Return a sentence with the value and the transfers."""
        value = f"{self.objective.label} {self.objective.text(self.value)}"
        return f"Simulated {value}; {self.run.num_transfers} transfers, {rounded_megabytes(self.run.transfer_bytes)} MB"

    @property
    def said(self) -> tuple[str, ...]:
        """Return the problem's name and the sentence."""
        return (f"SIMULATED {self.problem.name}. {self.sentence}",)


def rounded_megabytes(size_bytes: float) -> str:
    """Return a size in MB (millions of bytes), with four digits."""
    return f"{size_bytes / 1e6:.4g}"


def simulate_placement(
    problem: ScheduleProblem, plan: Plan, semantics: Semantics, objective: Objective = LATENCY
) -> SimulateResult:
    """Simulate a plan over the ops of a problem.

    Raises PlacementError for an op on a device that does not support it, and OptionError for an order without the
    priorities it needs.
    """
    semantics.check(objective)
    objective = scaled(objective, problem, semantics)
    semantics = replace(semantics, order=semantics.order or (Order.FIFO if plan.priority is None else Order.PRIORITY))
    priority = plan.priority if semantics.order is Order.PRIORITY else None
    run = simulate(problem, plan.placement, one_inference(semantics), priority)
    (value,) = simulated_values(objective, problem, plan.placement[None], semantics, priority)
    names = problem.device_names
    return SimulateResult(
        **Simulated.about(problem, objective, semantics),
        run=run,
        value=float(value),
        busy_s=dict(zip(names, run.busy_s.tolist(), strict=True)),
        peak_memory_bytes=dict(zip(names, run.peak_memory_bytes.tolist(), strict=True)),
        over_memory=tuple(names[d] for d in np.flatnonzero(over_memory(problem, run.peak_memory_bytes))),
        transfers=run.num_transfers,
        transfer_bytes=run.transfer_bytes,
        seed=semantics.seed,
    )


def parse_semantics(execution: str, order: str | None, links: str, seed: int = 0) -> Semantics:
    """Return the semantics that options name. Raises OptionError for an unknown name and for a seed out of range."""
    check_seed(seed)
    return Semantics(
        execution=Execution(chosen("execution", execution, [kind.value for kind in Execution])),
        order=None if order is None else Order(chosen("order", order, [kind.value for kind in Order])),
        links=LinkSharing(chosen("links", links, [kind.value for kind in LinkSharing])),
        seed=seed,
    )


def placed(
    placement: str | Path | Mapping[str, str] | Placement, problem: ScheduleProblem, order: Order | None = None
) -> Plan:
    """Return a placement as a plan over the ops of a problem.

    Raises FileFormatError if a file is missing or holds no placement, and PlacementError if the placement is for
    another model, or if its ops, devices or priorities are not those of ``problem``.

    Args:
        placement: A ``Placement``, a device name for every op name, or the path of a file that holds either.
        order: The priorities of the placement are used if this is PRIORITY or None, and otherwise ignored.
    """
    where = str(placement) if isinstance(placement, str | Path) else "the placement"
    if isinstance(placement, str | Path):
        placement = _read(Path(placement))
    if not isinstance(placement, Placement):
        return Plan(_devices(placement, where, problem))
    expected, model = problem.model, placement.model
    if expected is not None and expected.fingerprint != model.fingerprint:
        raise PlacementError(f"{where} is for model {model.name!r}, but the problem is of model {expected.name!r}")
    names = dict(zip(problem.canonical_names, problem.op_names, strict=True))
    device = _devices({names.get(op, op): device for op, device in placement.affinity.items()}, where, problem)
    if order not in (None, Order.PRIORITY) or placement.priority is None:
        return Plan(device)
    priority = {names.get(op, op): rank for op, rank in placement.priority.items()}
    _check_names(priority, f"{where}: 'priority'", problem)
    return Plan(device, np.asarray([priority[op] for op in problem.op_names]))


def _read(path: Path) -> Placement | dict[str, str]:
    text = read_text(path)
    document = parse_json(text, str(path))
    if not isinstance(document, dict) or not document:
        raise FileFormatError(f"{path}: a placement must be a non-empty object of op names and device names")
    if document.get("format") == FORMAT_NAME:
        return Placement.from_json(text, str(path))
    for op, device in document.items():
        if not isinstance(device, str):
            raise FileFormatError(f"{path}: {op!r}: a device name is expected, not {json.dumps(device)[:40]}")
    return document


def _devices(affinity: Mapping[str, str], path: str, problem: ScheduleProblem) -> IntArray:
    _check_names(affinity, path, problem)
    index = {name: d for d, name in enumerate(problem.device_names)}
    for op, name in affinity.items():
        if name not in index:
            choices = ", ".join(problem.device_names)
            raise PlacementError(f"{path}: op {op!r} is on unknown device {name!r}; the problem has {choices}")
        if not problem.supported[problem.index_of[op], index[name]]:
            raise PlacementError(f"{path}: op {op!r} is on device {name!r}, which does not support it")
    return np.asarray([index[affinity[op]] for op in problem.op_names], dtype=np.int64)


def _check_names(table: Mapping[str, object], where: str, problem: ScheduleProblem) -> None:
    if unknown := [op for op in table if op not in problem.index_of]:
        raise PlacementError(f"{where} names op {unknown[0]!r}, which problem {problem.name!r} does not have")
    if missing := [op for op in problem.op_names if op not in table]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PlacementError(f"{where} has no entry for op {missing[0]!r}{more}; every op needs one")
