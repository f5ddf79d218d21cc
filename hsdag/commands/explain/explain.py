"""Make the ``Explanation`` of a placement from its costs and measurements.

Legend: N ops, U units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.base.errors import OptionError, SearchError, checked, option
from hsdag.commands.explain.attribution import Attribution, bound_of, last_of_units, pieces, simulated_gains
from hsdag.commands.explain.explanation import Difference, Explanation, Gain, Prediction, Rival, Shared
from hsdag.commands.place.load_placement import load_placement
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RESULT, RunFolder
from hsdag.commands.place.session import Session
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.reader import input_shapes
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.ir.placement.homes import op_devices, op_homes, placed_priority
from hsdag.ir.placement.placement import ExecutorName, Placement
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.objectives import LATENCY, find_objective
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import CostSource

LIMIT_S = 20.0
"""Seconds after which no further moves are simulated."""


@dataclass(frozen=True, eq=False)
class Case:
    """A placement of a problem, its costs if known, and the result of the search that measured it, if any."""

    problem: Problem
    costs: PlacementCosts | None
    placement: Placement
    executor: ExecutorName
    result: PlaceResult | None = None

    def explained(self, limit_s: float = LIMIT_S) -> Explanation:
        """Return the explanation; simulating moves may take ``limit_s`` seconds."""
        begin_s = time.monotonic()
        problem = self.problem
        if self.placement.shards or self.placement.copies:
            return self._multi_device()
        named = op_devices(self.placement, problem.units.fine)
        index = {name: d for d, name in enumerate(problem.devices)}
        notes = list[str]()
        device = np.array([index[name] for name in named], dtype=np.int64) if set(named) <= set(index) else None
        if device is None:
            used = " and ".join(dict.fromkeys(named))
            searched = " and ".join(problem.devices)
            notes.append(f"The search placed ops on {searched}, not on {used}: what each op gains there is not known.")
        elif self.costs is None:
            notes.append(_no_costs())
        if problem.objective.unit != "s":
            notes.append(f"Costs are in seconds: what they say is of latency, not of {problem.objective.name}.")
        attribution = None if device is None or self.costs is None else self._attribution(device, self.costs)
        if attribution is not None and not np.isfinite(attribution.value):
            notes.append("The costs say that the placement cannot run: a device lacks one of its ops.")
            attribution = None
        gains, unmoved = ((), 0) if attribution is None else simulated_gains(attribution, problem, limit_s)
        if unmoved:
            notes.append(f"{unmoved} units were not moved: simulating a move takes long, and time was over.")
        rivals = {split: self._rival(device, attribution, gains, split=split) for split in (False, True)}
        bounds: dict[str, Any] = {}
        if attribution is not None:
            bound = bound_of(replace(problem, objective=attribution.objective), attribution.costs, attribution.value)
            bounds = {"limits": attribution.limits(), "bound": bound}
        return Explanation(
            model=self.placement.model.name,
            executor=self.executor,
            objective=problem.objective.name,
            **self._answer(),
            ops={name: named.count(name) for name in dict.fromkeys((*problem.devices, *named))},
            value=self._prediction(attribution),
            gains=gains,
            num_unmoved=unmoved,
            next_best=rivals[False],
            best_split=rivals[True] if len(set(named)) == 1 else None,
            notes=tuple(notes),
            elapsed_s=time.monotonic() - begin_s,
            **bounds,
        )

    def _multi_device(self) -> Explanation:
        """Return the explanation of a placement that divides ops or copies the model."""
        placement, graph, names = self.placement, self.problem.units.fine, self.problem.devices
        homes = op_homes(placement, graph)
        op = {name: v for v, name in enumerate(graph.canonical_names)}
        time_s = None if self.costs is None else np.nan_to_num(self.costs.costs.time_s, nan=np.inf)
        regions = []
        of_copies = [shard for copy in placement.copies or () for shard in copy.shards or ()]
        for record in placement.shards or of_copies:
            ops = [op[name] for name in record.ops]
            extents = {name: end - begin for name, (begin, end) in record.shares.items()}
            shares = {name: extent / (sum(extents.values()) or 1) for name, extent in extents.items()}
            whole_s = divided_s = None
            if time_s is not None and set(shares) <= set(names):
                taken = {name: float(time_s[ops, d].sum()) for d, name in enumerate(names)}
                scale = dict.fromkeys(shares, 1.0) if record.scheme == "replicated" else shares
                whole_s, divided_s = min(taken.values()), max(scale[name] * taken[name] for name in shares)
            first, last = graph.op_names[ops[0]], graph.op_names[ops[-1]]
            regions.append(Shared(record.scheme, first, last, len(ops), shares, whole_s, divided_s))
        regions.sort(key=lambda region: -(region.whole_s or 0.0))
        return Explanation(
            model=placement.model.name,
            executor=self.executor,
            objective=self.problem.objective.name,
            ops={name: sum(name in home.split("+") for home in homes) for name in names},
            value=self._prediction(None),
            regions=tuple(regions),
            copies={" and ".join(copy.devices): copy.requests for copy in placement.copies or ()},
            **self._answer(),
            notes=() if self.costs is not None else (_no_costs(),),
        )

    def _answer(self) -> dict[str, Any]:
        """Return what the search said of the placement, and of what is left to gain, if this was its answer."""
        if self.result is None or self.placement != self.result.placement:
            return {}
        return {"answer": self.result.summary, "left": self.result.bound, "settings": self.result.settings}

    def _attribution(self, placement: IntArray, costs: PlacementCosts) -> Attribution:
        """Return the attribution of a placement [N] under ``costs``; ops without a rank come last."""
        priority = placed_priority(self.placement, self.problem.units.fine)
        ranks = None if priority is None else [np.iinfo(np.int64).max if rank is None else rank for rank in priority]
        order = None if ranks is None else np.array(ranks, dtype=np.int64)
        in_seconds = self.problem.objective if self.problem.objective.unit == "s" else LATENCY
        return Attribution(self.problem.units.fine, self.problem.devices, placement, order, in_seconds, costs)

    def _prediction(self, attribution: Attribution | None) -> Prediction:
        """Return the simulated and the measured value of the placement."""
        latency = self.placement.latency
        measured = latency.median_s if latency is not None and latency.measured else None
        is_calibrated = attribution is not None and attribution.costs.costs.source is CostSource.CALIBRATED
        return Prediction(None if attribution is None else attribution.value, measured, is_calibrated)

    def _rival(
        self, device: IntArray | None, attribution: Attribution | None, gains: Sequence[Gain], *, split: bool
    ) -> Rival | None:
        """Return the best other plan, with ``split`` the best that uses several devices.

        Plans of the final comparison take precedence over the best single move by the costs; None if there is neither.

        Args:
            device: Device indices [N] of the placement, None if it uses devices that the search did not.
        """
        others = {
            name: placement
            for name, placement in self._compared().items()
            if (device is None or not self._is_alike(placement, device))
            and (not split or len(np.unique(placement)) > 1)
        }
        if others and self.result is not None:
            best = self.result.comparison.fastest(list(others))
            ratio = self.result.comparison.ratio(self.result.answer.name, best)
            ci95 = (ratio.low, ratio.high) if ratio.is_known else None
            differs = differences(self.problem, device, others[best], attribution)
            return Rival(best, True, ratio.value, ci95, self.result.comparison.median(best), *differs)
        if attribution is None or not gains or (split and len(attribution.devices) < 2):
            return None
        move = gains[-1]
        there = Difference(move.op, move.op_type, move.device, move.other)
        name = f"the one with {move.op} on {move.other}"
        return Rival(name, False, move.moved / attribution.value, None, move.moved, (there,), len(move.ops))

    def _is_alike(self, placement: IntArray, other: IntArray) -> bool:
        """Return whether two placements [N] are equal, or each on one device of the same kind (as CPU halves are)."""
        kind_of = {spec.name: repr((spec.plugin, spec.properties)) for spec in self.placement.devices}
        kinds = np.array([kind_of.get(name, name) for name in self.problem.devices])
        is_whole = len(np.unique(placement)) == len(np.unique(other)) == 1
        return np.array_equal(placement, other) or (is_whole and bool((kinds[placement] == kinds[other]).all()))

    def _compared(self) -> dict[str, IntArray]:
        """Return the plans [N] of the final comparison, except the answer, that keep pins and were not rejected."""
        problem, result = self.problem, self.result
        if result is None or self.placement.affinity != result.placement.affinity:
            return {}
        samples, answer = result.comparison.samples, result.answer.name
        labels = problem.units.partition.labels
        sizes = (problem.num_units, problem.num_devices)
        plans = {name: np.full(len(labels), d) for d, name in enumerate(problem.devices)}
        plans |= {name: problem.expand(plan.plan(*sizes, RESULT).placement) for name, plan in result.finalists.items()}
        beside = samples.keys() - {answer, *result.turned_down} if answer in samples else ()
        return {n: plan for n, plan in plans.items() if n in beside and problem.supported[labels, plan].all()}


def _no_costs() -> str:
    """Return the note on a placement whose costs are not known."""
    return f"Nothing was profiled, so gains and limits are not known; {option('model')} MODEL has the model profiled."


def differences(
    problem: Problem, placement: IntArray | None, other: IntArray, attribution: Attribution | None
) -> tuple[tuple[Difference, ...], int]:
    """Return the units that another placement [N] has on another device, longest first, and how many such ops."""
    if placement is None:
        return (), 0
    graph, names = problem.units.fine, problem.devices
    unit = pieces(problem, placement)
    weight = graph.flops if attribution is None else np.nan_to_num(attribution.costs.costs.time_s).max(axis=1)
    taken = graph.flops if attribution is None else attribution.time_s
    heaviest = last_of_units(np.lexsort((graph.flops, taken)), unit)
    ops = sorted(heaviest[np.unique(unit[placement != other])].tolist(), key=lambda v: -weight[v])
    differing = [
        Difference(graph.op_names[v], graph.op_types[v], names[placement[v]], names[other[v]])
        for v in ops
        if placement[v] != other[v]
    ]
    return tuple(differing), int((placement != other).sum())


def explain_run(kept: RunFolder, placement: Placement | None = None) -> Explanation:
    """Explain the answer of a kept run, or another placement of its model, with the costs at the end of the search.

    Raises SearchError if the search has not ended and no placement is given, and PlacementError if the placement is for
    another model.
    """
    chosen = placement or kept.placement
    if chosen is None:
        raise SearchError(
            f"the search in {kept.path} has not ended: finish it with {option('resume')}, or name a placement"
        )
    return Case(kept.problem, kept.costs, chosen, kept.executor, kept.result).explained()


def _devices_of(placement: Placement) -> DeviceSet:
    """Return the devices of a placement.

    A whole device next to its parts that has no ops of a split is a rival of the parts, to be compared with.
    """
    specs, used = placement.devices, placement.used_devices
    parted = {spec.plugin for spec in specs if spec.is_added}
    rivals = [s for s in specs if not s.is_added and s.plugin in parted and (s.name not in used or len(used) == 1)]
    placed = [spec for spec in specs if spec not in rivals or used == (spec.name,)]
    return DeviceSet(tuple(placed), tuple(spec for spec in rivals if spec not in placed))


@checked
def explain(
    placement: str | Path | Placement | PlaceResult,
    *,
    run: str | Path | None = None,
    model: Any = None,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Explain why a placement is as it is, as ``hsdag explain`` does; figures are simulated unless marked as measured.

    Raises a ``hsdag.HsdagError`` for what the caller can correct: OptionError for both a run and a model, for a
    ``shape`` without a model, and for a placement in memory with neither.

    Args:
        run: Run folder whose costs are used; by default the one next to the placement file.
        model: Path or ``ov.Model`` whose profile gives the costs; it is measured unless the cache has it.

    Examples:
        >>> import hsdag, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.relu(x)], [x], "small")
        >>> explanation = hsdag.explain(hsdag.place(model, "CPU", budget="1s").placement, model=model)
        >>> explanation.ops
        {'CPU': 3}
    """
    if run is not None and model is not None:
        raise OptionError(f"costs come from {option('run')} or from {option('model')}, not from both; leave one out")
    if shape and model is None:
        raise OptionError(
            f"{option('shape')} is for the model that is profiled: name it with {option('model')}, or leave "
            f"{option('shape')} out"
        )
    chosen = load_placement(placement)
    if run is not None:
        return explain_run(RunFolder.load(run), chosen)
    if model is None:
        if isinstance(placement, Placement):
            raise OptionError("a placement in memory is explained by a run or a model: name one")
        return explain_run(RunFolder.load(placement), chosen)
    objective = find_objective(chosen.objective)
    inputs = ModelInputs(
        input_shapes(shape), chosen.model.input_shapes, parse_scenarios(chosen.data_shapes or (), None)
    )
    with Session(model, _devices_of(chosen), inputs, objective=objective, executor=chosen.executor) as session:
        op_homes(chosen, session.graph)
        profile = session.profile(on_step=on_step, side_by_side=chosen.executor != "hetero" or objective.is_steady)
        problem = session.problem(profile=profile)
        costs = session.model.costs(profile, chosen.executor)
    if isinstance(costs, HeteroCosts):
        problem = replace(problem, ops=costs)
    return Case(problem, costs, chosen, chosen.executor).explained()
