"""Base class of placers that train a policy.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.base.errors import FileFormatError, OptionError, option
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.base import Placer, Preset
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.learned.limited_memory import LimitedMemory
from hsdag.methods.learned.options import ReusableOptions, TrainingOptions
from hsdag.methods.learned.policy import Aim, Exploring, Policy, Rollout
from hsdag.methods.learned.training import Trainer
from hsdag.methods.lists.base import TWO_OPS
from hsdag.methods.lists.schedulers import CriticalPathPlacer
from hsdag.methods.policy_file import read_policy
from hsdag.runtime.machine.usable import usable_memory_bytes
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import SearchMeasurement

T = TypeVar("T", bound=TrainingOptions)

MEMORY_PENALTY = 10.0
"""Penalty of a plan that exceeds a device's memory by its whole size, as a multiple of the plan's value; a smaller or
larger excess is penalised in proportion."""

SPREADS = (1.0, 3.0)
"""Factors of the weight of entropy, of which each policy that is trained after a stagnant one takes the next: a policy
often stagnates because it has converged on its first good plans."""


class LearnedPlacer(Placer[T]):
    """A placer that trains a policy on the problem; the same options, seed and evaluations give the same plans.

    All plans that it evaluates are drawn from the policy, except those of single devices, draws that were repaired
    because they exceed a memory, and plans that the caller knows, such as the one in use: these are evaluated first and
    imitated with the elites. PyTorch uses one thread: the networks are small, and on a busy machine more threads make
    them ten times slower.

    Attributes:
        initial: Weights of other problems that policies begin with, by name; none if they begin untrained.
    """

    learns = True
    is_seeded = True
    options_type: ClassVar[type[TrainingOptions]]
    paper_reward: ClassVar[str] = "hybrid"
    """Default reward of the preset ``paper``."""
    trainer: Trainer | None = None
    """Trainer of the current policy; None before the search has begun."""

    def __init__(self, options: T | None = None) -> None:
        super().__init__(options)
        self.initial: Mapping[str, NDArray[Any]] = {}
        if isinstance(self.options, ReusableOptions) and self.options.initial is not None:
            self.initial = read_policy(Path(self.options.initial), self.name).weights
        if self.options.updates != 0:  # the first Adam loads PyTorch's compiler, before the search begins
            torch.optim.Adam([torch.nn.Parameter(torch.zeros(()))])

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[T]]:
        """Return the presets ``default`` and ``paper``.

        In ``paper``, a unit may have any share of the work, and plans are timed as in HSDAG's Table 2.
        """
        ours = Preset(cls.options_type.default(is_cheap=is_cheap))
        paper = Preset(cls.options_type.paper(), cls.paper_reward, 1.0, SearchMeasurement.paper())
        return cast("dict[str, Preset[T]]", {"default": ours, "paper": paper})

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        super().prepare(problem, takes_order=takes_order)
        generator = torch.Generator()
        policy = self.begun(problem_of(TWO_OPS), generator)
        drawn = policy.draw(1, Exploring(), generator)
        policy.loss(policy.replay([drawn[0].plan], generator), None, Aim(None, 0.0, 1.0))

    @abstractmethod
    def policy(self, problem: Problem, generator: torch.Generator) -> Policy:
        """Return an untrained policy for a problem; ``generator`` gives its initial weights."""

    def begun(self, problem: Problem, generator: torch.Generator) -> Policy:
        """Return a policy for a problem, with the weights of ``initial``, if any.

        Raises FileFormatError if these are of networks with other options.
        """
        policy = self.policy(problem, generator)
        reusable, initial = policy.reusable, self.initial
        if not initial:
            return policy
        if {k: tuple(v.shape) for k, v in reusable.items()} != {k: v.shape for k, v in initial.items()}:
            raise FileFormatError(
                f"the policy that {option('init')} names is of networks with other options; begin with the preset "
                "and the hyper-parameters that it was trained with"
            )
        with torch.no_grad():
            for name, parameter in reusable.items():
                parameter.copy_(torch.from_numpy(initial[name]))
        return policy

    def teacher(self, policy: Policy, problem: Problem) -> Callable[[torch.Generator], list[Rollout]]:
        """Return a function that gives the decisions to imitate in the first updates, if the options ask for that.

        They are those of CRITICAL PATH's plan. Raises OptionError if costs are unknown.
        """
        if problem.costs is None:
            raise OptionError(f"option teacher_updates of {self.name} needs the costs of ops, which are unknown here")
        plan = next(CriticalPathPlacer().proposals(problem, 0))
        return lambda generator: policy.replay([plan.unordered], generator)

    def learns_before(self, policy: Policy, incumbent: Incumbent, generator: torch.Generator) -> bool:  # noqa: ARG002
        """Train the policy before the search evaluates plans, if the method does so; return whether it is trained.

        The answer is also True if the search that is being resumed has trained it. By default, nothing is done.
        """
        return False

    def limited_memory(self, problem: Problem) -> LimitedMemory | None:
        """Return what is to be done with plans that exceed a memory; None if none is limited or costs are unknown."""
        costs = problem.costs
        if costs is None or not np.isfinite(costs.memory_bytes).any():
            return None
        return LimitedMemory(problem, self.penalised)

    def penalised(self, value: float, over_bytes: FloatArray, memory_bytes: FloatArray) -> float:
        """Return the value of a plan that exceeds a memory.

        Args:
            value: Simulated value of the plan.
            over_bytes: Bytes by which the plan exceeds the memory of each device [D], negative where it fits.
            memory_bytes: Memory of each device [D].
        """
        limited = np.isfinite(memory_bytes)
        over = over_bytes[limited] / np.maximum(memory_bytes[limited], 1.0)
        return value * (1.0 + MEMORY_PENALTY * float(over.max()))

    def needed_bytes(self, problem: Problem) -> float:  # noqa: ARG002
        """Return roughly the bytes that training takes; 0 if they grow only linearly with the problem."""
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
        """Train a policy, and another one whenever one stagnates, until a training ends for another reason.

        If the first draws of a policy from other problems all exceed a memory, an untrained one takes its place.
        """
        generator = torch.Generator().manual_seed(incumbent.limits.seed)
        spread = SPREADS[0]
        for number in itertools.count():
            trainer = self.trainer = self._trainer(incumbent, generator, spread)
            if incumbent.limits.known:
                trainer.buffer.add(incumbent.limits.known, incumbent.evaluate(incumbent.limits.known))
            trainer.run(incumbent.checkpoint, resumes=number == 0)
            if not trainer.is_trained or trainer.updates.none_fits:
                self.initial = {}
            if trainer.updates.none_fits:
                spread = trainer.spread
                continue
            if not trainer.updates.are_stagnant:
                return
            spread = SPREADS[(SPREADS.index(trainer.spread) + 1) % len(SPREADS)]

    def _trainer(self, incumbent: Incumbent, generator: torch.Generator, spread: float) -> Trainer:
        problem = incumbent.problem
        policy = self.begun(problem, generator)
        is_trained = self.learns_before(policy, incumbent, generator) or bool(self.initial)
        return Trainer(
            self.name,
            policy,
            incumbent,
            self.options,
            generator,
            singles=problem.alone,
            teacher=self.teacher(policy, problem) if self.options.teacher_updates else None,
            memory=self.limited_memory(problem),
            is_trained=is_trained,
            spread=spread,
        )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have PyTorch compute on one thread inside the context, and on as many as before after it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
