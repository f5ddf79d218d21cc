"""LearnedPlacer: the base of methods that train a policy."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar, cast

import numpy as np
import torch

from hsdag.ir.errors import OptionError
from hsdag.methods.base import Placer, Preset
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.learned.options import TrainingOptions
from hsdag.methods.learned.policy import Policy, Rollout
from hsdag.methods.learned.training import Trainer
from hsdag.methods.lists.base import search_two_ops
from hsdag.methods.lists.rules import RulesOptions, RulesPlacer, are_asked
from hsdag.methods.lists.schedulers import CriticalPathPlacer
from hsdag.methods.local.sa import SaPlacer
from hsdag.runtime.machine.usable import usable_memory_bytes
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.base import SearchMeasurement

T = TypeVar("T", bound=TrainingOptions)


class LearnedPlacer(Placer[T]):
    """A method that trains a policy on the problem; the same options, seed and evaluations give the same plans.

    Plans that are known, such as the one that serves at present, are evaluated first and imitated with the elites.
    Torch uses one thread: the networks are small, and on a busy machine more threads make them ten times slower.
    """

    learns = True
    is_seeded = True
    options_type: ClassVar[type[TrainingOptions]]
    paper_reward: ClassVar[str] = "hybrid"
    """The default reward of the paper's preset."""
    trainer: Trainer | None = None
    """Of the search, once it has begun."""

    def __init__(self, options: T | None = None) -> None:
        super().__init__(options)
        self._rules = RulesPlacer(RulesOptions.at_once(self.options.initial))  # what was learned on other problems
        if self.options.updates != 0:  # the first Adam loads torch's compiler, which is not to count as search
            torch.optim.Adam([torch.nn.Parameter(torch.zeros(()))])

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[T]]:
        """Ours, and the paper's: units of any share of the work, plans timed as in HSDAG's Table 2."""
        ours = Preset(cls.options_type.default(is_cheap=is_cheap))
        paper = Preset(cls.options_type.paper(), cls.paper_reward, 1.0, SearchMeasurement.paper())
        return cast("dict[str, Preset[T]]", {"default": ours, "paper": paper})

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        if self.options.begins_taught:
            search_two_ops(self._rules, problem)
        if self.options.polish:
            SaPlacer().prepare(problem, takes_order=takes_order)

    @abstractmethod
    def policy(self, problem: Problem, generator: torch.Generator) -> Policy:
        """An untrained policy for a problem."""

    def teacher(self, policy: Policy, problem: Problem) -> Callable[[torch.Generator], list[Rollout]]:
        """What the first updates imitate where they are to: CRITICAL PATH's plan.

        Raises OptionError where costs are unknown.
        """
        if problem.costs is None:
            raise OptionError(f"option teacher_updates of {self.name} needs the costs of ops, which are unknown here")
        plan = next(CriticalPathPlacer().proposals(problem, 0))
        return lambda generator: policy.replay([plan.unordered], generator)

    def learns_before(self, policy: Policy, incumbent: Incumbent, generator: torch.Generator) -> bool:  # noqa: ARG002
        """Whether the policy has learned, here or in the search that is resumed, before plans are asked for."""
        return False

    def penalty(self, problem: Problem) -> Callable[[Plan], float] | None:  # noqa: ARG002
        """What values plans that failed have; None where they count as more than the worst."""
        return None

    def needed_bytes(self, problem: Problem) -> float:  # noqa: ARG002
        """About the memory that training takes, where it grows faster than the problem."""
        return 0.0

    def _search(self, incumbent: Incumbent) -> Status:
        needed, usable = self.needed_bytes(incumbent.problem), usable_memory_bytes()
        out_of_memory = f"method {self.name!r} is out of memory for {incumbent.problem.num_units} units"
        if needed > usable:
            amounts = f"about {needed / 1e9:.3g} GB, and {usable / 1e9:.3g} GB are usable"
            raise GaveUp(f"{out_of_memory}: training takes {amounts}")
        try:
            with one_thread():
                self._train(incumbent)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
                raise
            raise GaveUp(out_of_memory) from error
        return Status.FEASIBLE

    def _train(self, incumbent: Incumbent) -> None:
        problem, limits = incumbent.problem, incumbent.limits
        generator = torch.Generator().manual_seed(limits.seed)
        policy = self.policy(problem, generator)
        is_trained = self.learns_before(policy, incumbent, generator)
        trainer = self.trainer = Trainer(
            self.name,
            policy,
            incumbent,
            self.options,
            generator,
            singles=problem.alone,
            teacher=self.teacher(policy, problem) if self.options.teacher_updates and not is_trained else None,
            penalty=self.penalty(problem),
            is_trained=is_trained,
        )

        def remember(plans: Sequence[Plan]) -> None:
            if plans:
                trainer.buffer.add(plans, incumbent.evaluate(plans))

        remember(limits.known)
        remember(self._taught(incumbent))
        is_polished = incumbent.is_cheap and self.options.updates is None and np.isfinite(limits.seconds)
        polish = self.options.polish * is_polished
        trainer.run(incumbent.checkpoint, 1.0 - polish if polish else np.inf)
        if polish and incumbent.best is not None:
            limits = replace(limits, seconds=incumbent.left_s, known=(incumbent.best,))
            SaPlacer().search(problem, incumbent, limits)

    def _taught(self, incumbent: Incumbent) -> list[Plan]:
        """The best plan of the policy that was learned on other problems, where it knows what is asked for."""
        is_new = incumbent.checkpoint is None or incumbent.checkpoint.load() is None
        if not (are_asked(incumbent) and is_new and self.options.begins_taught):
            return []
        try:
            plan = self._rules.search(incumbent.problem, incumbent, incumbent.limits).plan
        except OptionError:  # not for this objective, or without costs
            return []
        return [] if plan is None else [plan]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread inside, and on as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
