"""Pretraining: one network, many problems, so that it answers for problems that it has not seen.

Expert iteration: every problem has the plans of an expert among its elites, which every update imitates; what the
policy draws itself takes their place where it is better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.learned.doppler.network import DopplerConfig, DualNetwork
from hsdag.methods.learned.doppler.policy import dual_network, dual_policy
from hsdag.methods.learned.policy import first_plans
from hsdag.methods.learned.training import SAVE_EVERY_S, Progress, Trainer, learner_tensors, load_learner
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.scoring.base import Checkpoint, Evaluator, SearchStopped


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """A problem to learn on, how its plans are scored, and the plans of an expert.

    ``singles`` are the placements [U] of single devices.
    """

    costs: ScheduleProblem
    evaluator: Evaluator
    singles: tuple[IntArray, ...]
    experts: tuple[Plan, ...]


NAME = "pretraining"


class Pretraining:
    """Trains one network on problems in random turns; all randomness comes from one generator seeded with ``seed``.

    ``on_update`` hears of every update by its number in the whole training.
    """

    def __init__(
        self,
        options: DopplerConfig,
        problems: Sequence[TrainingProblem],
        seed: int,
        on_update: Callable[[Progress], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options, self._problems, self._should_stop = options, problems, should_stop
        self._generator = torch.Generator().manual_seed(seed)
        self.network: DualNetwork = dual_network(options, self._generator)
        self._optimiser = torch.optim.Adam(self.network.parameters(), lr=options.learning_rate)
        self._done = 0
        self._trainers = [
            Trainer(
                NAME,
                dual_policy(self.network, problem.costs, options),
                problem.evaluator,
                options,
                self._generator,
                singles=problem.singles,
                optimiser=self._optimiser,
                progress=lambda: self._done / (options.updates or 1),
                on_update=lambda progress: on_update(replace(progress, update=self._done)),
            )
            for problem in problems
        ]

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Make ``options.updates`` updates; go on from ``checkpoint`` where it holds a state.

        Raises SearchStopped, the state saved, when it has to end.
        """
        if not self._resume(checkpoint):
            for trainer, problem in zip(self._trainers, self._problems, strict=True):
                trainer.begin()
                trainer.buffer.add(problem.experts, problem.evaluator.evaluate(problem.experts))
        saved_s = time.monotonic()
        while self._done < (self._options.updates or 1):
            turn = int(torch.randint(len(self._trainers), (1,), generator=self._generator))
            self._trainers[turn].update()
            self._done += 1
            is_over = self._should_stop()
            if is_over or time.monotonic() - saved_s > SAVE_EVERY_S:
                self._save(checkpoint)
                saved_s = time.monotonic()
            if is_over:
                raise SearchStopped
        self._save(checkpoint)

    def _save(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        tensors = learner_tensors(self.network, self._optimiser, self._generator)
        states = []
        for i, trainer in enumerate(self._trainers):
            of_trainer, state = trainer.state()
            tensors |= {f"{i}.{name}": tensor for name, tensor in of_trainer.items()}
            states.append(state)
        checkpoint.save(tensors, {"done": self._done, "trainers": states})

    def _resume(self, checkpoint: Checkpoint | None) -> bool:
        stored = checkpoint.load() if checkpoint is not None else None
        if stored is None:
            return False
        tensors, state = stored
        load_learner(self.network, self._optimiser, self._generator, tensors)
        self._done = int(state["done"])
        for i, (trainer, of_trainer) in enumerate(zip(self._trainers, state["trainers"], strict=True)):
            own = {k.removeprefix(f"{i}."): v for k, v in tensors.items() if k.startswith(f"{i}.")}
            trainer.restore(own, of_trainer)
        return True


def zero_shot(
    network: DualNetwork, options: DopplerConfig, problem: TrainingProblem, num_draws: int, seed: int
) -> tuple[float, float]:
    """What the policy is worth on a problem as it is: the value of its most probable plan, and the least of all draws.

    The most probable plan is one of them.
    """
    policy, generator = dual_policy(network, problem.costs, options), torch.Generator().manual_seed(seed)
    plans = first_plans(policy, num_draws, generator)
    values = np.array([score.value for score in problem.evaluator.evaluate(plans)])
    return float(values[0]), float(values.min())
