"""Training of DOPPLER's networks: one network, many problems, so that it answers for problems that it has not seen.

Expert iteration: every problem has the plans of an expert among its elites, which every update imitates; what the
policy draws itself takes their place where it is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hsdag.methods.learned.doppler.network import Beginning, DopplerConfig, DualNetwork
from hsdag.methods.learned.doppler.placer import DualPolicy, policy_card
from hsdag.methods.learned.options import Baseline
from hsdag.methods.learned.policy import first_plans
from hsdag.methods.learned.training import NUM_FIRST, State, Trainer, learner_tensors, load_learner
from hsdag.methods.registry import changed_options
from hsdag.scoring.base import CurvePoint
from hsdag.training.problems import TrainingProblem


def network_options(num_updates: int, changes: Mapping[str, str]) -> DopplerConfig:
    """Hyper-parameters: a stable, slow variant of DOPPLER's. Raises OptionError for a wrong change."""
    base = DopplerConfig(
        updates=num_updates,
        plans_per_update=16,
        kept_per_update=None,
        learning_rate=1e-3,
        entropy=1e-2,
        baseline=Baseline.BATCH,
        elites=4,
        imitation_weight=1.0,
        begins_as=Beginning.HEFT,
        logit_range=20.0,
    )
    return changed_options("doppler", base, changes)


class NetworkTraining:
    """Trains one network on problems in random turns; all randomness comes from one generator."""

    num_updates = 0

    def __init__(self, problems: Sequence[TrainingProblem], options: DopplerConfig, seed: int) -> None:
        self._problems, self._options, self._seed = problems, options, seed
        self._generator = torch.Generator().manual_seed(seed)
        self._network = DualNetwork(options, self._generator)
        self._optimiser = torch.optim.Adam(self._network.parameters(), lr=options.learning_rate)
        self._trainers = [
            Trainer(
                "pretraining",
                DualPolicy(self._network, problem.costs, options),
                problem.evaluator,
                options,
                self._generator,
                singles=problem.singles,
                optimiser=self._optimiser,
                progress=lambda: self.num_updates / (options.updates or 1),
            )
            for problem in problems
        ]

    def begin(self) -> None:
        """Have the plans of single devices and of experts evaluated."""
        for trainer, problem in zip(self._trainers, self._problems, strict=True):
            trainer.begin()
            trainer.buffer.add(problem.experts, problem.evaluator.evaluate(problem.experts))

    def update(self) -> CurvePoint:
        """One update on one of the problems, whose values are over the best plan of it that is known."""
        turn = int(torch.randint(len(self._trainers), (1,), generator=self._generator))
        progress = self._trainers[turn].update()
        assert progress is not None
        self.num_updates += 1
        mean, best, best_so_far = (value / progress.best_so_far for value in progress[1:4])
        return CurvePoint(self.num_updates - 1, mean, best, best_so_far, progress.entropy)

    def state(self) -> State:
        """Of the network and of the trainers, one after another."""
        tensors = learner_tensors(self._network, self._optimiser, self._generator)
        states = []
        for i, trainer in enumerate(self._trainers):
            of_trainer, state = trainer.state()
            tensors |= {f"{i}.{name}": tensor for name, tensor in of_trainer.items()}
            states.append(state)
        return tensors, {"trainers": states}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        load_learner(self._network, self._optimiser, self._generator, tensors)
        for i, (trainer, of_trainer) in enumerate(zip(self._trainers, state["trainers"], strict=True)):
            own = {k.removeprefix(f"{i}."): v for k, v in tensors.items() if k.startswith(f"{i}.")}
            trainer.restore(own, of_trainer)

    def policy(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The network's weights and options."""
        return self._network.state_dict(), policy_card("", self._options) | {"learning": self._options.as_dict()}

    def worth(self, problem: TrainingProblem) -> tuple[float, float]:
        """The value of its most probable plan, and the least of that and of 15 draws."""
        policy = DualPolicy(self._network, problem.costs, self._options)
        plans = first_plans(policy, NUM_FIRST, torch.Generator().manual_seed(self._seed))
        values = np.array([score.value for score in problem.evaluator.evaluate(plans)])
        return float(values[0]), float(values.min())
