"""Rewards: the scores that guide a search, measured, simulated from a profile, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hsdag.evaluators.base import Evaluator
from hsdag.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.ir.errors import DeviceError
from hsdag.ir.graph import FloatArray
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.profiling.profile_cache import ProfileCache
from hsdag.runtime.profiling.profiler import Effort
from hsdag.search.options import PlaceOptions
from hsdag.search.run_folder import RunFolder
from hsdag.search.session import Session, with_costs

LEAST_SEARCH_SHARE = 0.25
"""Share of the budget that is left to the search, however long the profile took."""


@dataclass(frozen=True, eq=False)
class Ground:
    """The problem to search over, and its simulated costs where the reward needs them."""

    problem: Problem
    costs: PlacementCosts | None
    memory_bytes: FloatArray | None = None  # [D]
    compile_s: float = 0.0  # of the whole model, 0 where it is not known

    def left_s(self, budget_s: float, spent_s: float) -> float:
        """Seconds left to the search after a profile of ``spent_s``."""
        return max(budget_s - spent_s, LEAST_SEARCH_SHARE * budget_s) if self.costs is not None else budget_s

    def relearned(self, evaluator: Evaluator) -> Problem:
        """The problem with the costs as they were calibrated during the search."""
        if not isinstance(evaluator, HybridEvaluator) or self.memory_bytes is None:
            return self.problem
        return with_costs(self.problem, evaluator.costs.costs, self.memory_bytes)

    def evaluator(
        self,
        options: PlaceOptions,
        measured: RecordingEvaluator,
        folder: RunFolder | None,
        on_round: Callable[[int, int], None],
    ) -> Evaluator:
        """What the placer asks; ``measured`` itself where every placement is to be measured."""
        if self.costs is None:
            return measured
        schedule = HybridSchedule.simulated() if options.resolved_reward == "simulated" else HybridSchedule()
        if folder is None:
            return HybridEvaluator(self.problem, self.costs, measured, schedule, on_round=on_round)
        return HybridEvaluator(
            self.problem, self.costs, measured, schedule, kept=folder.kept(), keep=folder.keep, on_round=on_round
        )


def prepare(
    session: Session,
    options: PlaceOptions,
    on_phase: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> Ground:
    """Profile the model where the reward simulates.

    A device that cannot be profiled leaves measuring, unless simulation was requested by name; so does an
    interrupt. Raises DeviceError then, and when an op runs nowhere.
    """
    max_share, semantics = options.chosen_preset.max_share, options.semantics
    measured_alone = Ground(replace(session.problem(max_share=max_share), semantics=semantics), None)
    if options.resolved_reward == "measured":
        return measured_alone
    try:
        profile = session.profile(
            ProfileCache(None) if options.fresh else None,
            Effort.within(options.budget_s, len(session.devices.placed)),
            on_phase,
            should_stop,
        )
    except DeviceError as error:
        if options.reward is not None and not should_stop():
            raise
        on_phase(f"{error}; measuring every placement instead")
        return measured_alone
    problem = replace(session.problem(max_share=max_share, profile=profile), semantics=semantics)
    if options.executor == "hetero":
        costs: PlacementCosts = HeteroCosts.of(session.graph, profile.costs())
    else:
        costs = WorkConservingCosts.of(session.graph, profile.costs())
    return Ground(problem, costs, profile.memory_bytes, max(times.compile_s for times in profile.times))
