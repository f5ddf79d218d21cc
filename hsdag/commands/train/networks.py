"""Train the networks of a learned method on many problems, by the same updates as on one (DOPPLER §5, Placeto A.7).

Every problem has a training of its own, with its own plans, rewards and elites; all of them share the weights that suit
any problem, and the optimiser. Problems take turns, in a new random order for each pass over them.

Legend: P problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.base.errors import OptionError, choices_for
from hsdag.commands.train.problems import WORST, TrainingProblem, unit_s
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.learner import Learner
from hsdag.methods.learned.options import ReusableOptions
from hsdag.methods.learned.policy import Exploring, Policy
from hsdag.methods.learned.states import State
from hsdag.methods.learned.training import NUM_FIRST, Trainer
from hsdag.methods.lists.rules import METHOD as RULES
from hsdag.methods.registry import find_method
from hsdag.runtime.problem.units import problem_of

TRAINED = ("doppler", "hsdag")
"""Methods whose networks suit any problem."""


def reusable_options(method: str) -> ReusableOptions:
    """Return the options with which a method's networks are trained for reuse.

    Raises OptionError, which lists the choices, for a method without such networks.
    """
    if method not in TRAINED:
        raise OptionError(f"nothing is trained for method {method!r}{choices_for(method, [RULES, *TRAINED])}")
    kind: type[ReusableOptions] = find_method(method).options_type
    return kind.reusable()


class NetworkTraining:
    """A training of the networks of a method; all of its randomness comes from the seed.

    Attributes:
        method: Name of the method.
        options: Hyper-parameters; the number of updates is that of all problems together.
        num_updates: Number of updates made.
        trainers: Trainings of the problems.
        curve: Mean over the problems of the logarithm of the median draw's value, in units of the time of all ops on
            their fastest devices, after each pass.
    """

    def __init__(
        self,
        method: str,
        problems: Sequence[TrainingProblem],
        options: ReusableOptions,
        seed: int,
        num_updates: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.method, self.options, self._seed = method, options, seed
        self.num_updates = 0
        self.curve: list[float] = []
        self._losses: list[float] = []
        self._generator = torch.Generator().manual_seed(seed)
        placer = self._placer
        each_options = replace(options, updates=math.ceil(num_updates / len(problems)))
        self.trainers = list[Trainer]()
        for problem in problems:
            check()
            units = problem_of(problem.costs)
            policy = placer.policy(units, self._generator)
            reusable = policy.reusable
            for name, weights in policy.network.named_parameters():
                weights.requires_grad_(weights.requires_grad and name in reusable)
            if self.trainers:
                share_weights(self.trainers[0].policy, policy)
            self.trainers.append(
                Trainer(
                    method,
                    policy,
                    problem.evaluator,
                    each_options,
                    self._generator,
                    singles=units.alone,
                    memory=placer.limited_memory(units),
                )
            )
        self._learner = Learner(self.trainers[0].policy.reusable, options)
        for trainer in self.trainers:
            trainer.learner = self._learner
        self._unit_s = [unit_s(problem.costs) for problem in problems]

    @property
    def _placer(self) -> LearnedPlacer[Any]:
        placer = find_method(self.method)(self.options)
        assert isinstance(placer, LearnedPlacer)
        return placer

    def begin(self) -> None:
        """Evaluate the plans of single devices, which set the unit of rewards, on every problem."""
        for trainer in self.trainers:
            trainer.begin()

    def update(self) -> None:
        """Draw plans of the problem whose turn it is, and learn from them."""
        turn, at = divmod(self.num_updates, len(self.trainers))
        problem = np.random.default_rng([self._seed, turn]).permutation(len(self.trainers))[at]
        values = np.nan_to_num(self.trainers[problem].update(), nan=np.inf)
        self._losses.append(math.log(min(float(np.median(values)) / self._unit_s[problem], WORST)))
        self.num_updates += 1
        if len(self._losses) == len(self.trainers):
            self.curve.append(float(np.mean(self._losses)))
            self._losses.clear()

    def state(self) -> State:
        """Return the state to resume from."""
        tensors = {**self._learner.state(), "generator": self._generator.get_state()}
        states = []
        for i, trainer in enumerate(self.trainers):
            of_problem, state = trainer.state()
            tensors |= {f"problem.{i}.{name}": tensor for name, tensor in of_problem.items()}
            states.append(state)
        return tensors, {"problems": states, "curve": self.curve, "losses": self._losses, "done": self.num_updates}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Continue from the state that ``state`` returned."""
        self._learner.restore(tensors)
        self._generator.set_state(tensors["generator"])
        for i, (trainer, of_problem) in enumerate(zip(self.trainers, state["problems"], strict=True)):
            begin = f"problem.{i}."
            trainer.restore({k.removeprefix(begin): v for k, v in tensors.items() if k.startswith(begin)}, of_problem)
        self.curve, self._losses = list(state["curve"]), list(state["losses"])
        self.num_updates = state["done"]

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the shared weights by name."""
        return {name: parameter.detach().numpy() for name, parameter in self.trainers[0].policy.reusable.items()}

    def policy(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Return the weights of a policy file by name, and the entries that the training adds to its card."""
        return self.weights, {
            "method": self.method,
            "options": self.options.as_dict(),
            "curve": np.round(self.curve, 5).tolist(),
        }

    def worth(self, problem: TrainingProblem) -> tuple[float, float]:
        """Return the values on a problem of the most probable plan, and of the best of it and 15 draws.

        Plans that exceed a memory are repaired.
        """
        placer = self._placer
        placer.initial = self.weights
        units = problem_of(problem.costs)
        policy = placer.begun(units, self._generator)
        draws = [policy.best(self._generator), *policy.draw(NUM_FIRST - 1, Exploring(), self._generator)]
        plans, memory = [draw.plan for draw in draws], placer.limited_memory(units)
        values = [score.value for score in problem.evaluator.evaluate(plans)]
        if memory is not None:
            repaired = problem.evaluator.evaluate(memory.repaired(plans))
            values = [min(value, score.value) for value, score in zip(values, repaired, strict=True)]
        return values[0], min(values)


def share_weights(first: Policy, other: Policy) -> None:
    """Replace the reusable weights of another policy by those of the first one."""
    for name, parameter in first.reusable.items():
        module, _, last = name.rpartition(".")
        setattr(other.network.get_submodule(module), last, parameter)
