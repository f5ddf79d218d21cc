"""DopplerPlacer: DOPPLER, a policy that selects ops and one that places them, as a placer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from hsdag.ir.errors import SearchError
from hsdag.methods.incumbent import Incumbent
from hsdag.methods.learned.base import LearnedPlacer, singles_of
from hsdag.methods.learned.decoding import FEATURES, Rules, Scores, decode
from hsdag.methods.learned.doppler.network import Beginning, DopplerConfig, DualNetwork, OwnScores
from hsdag.methods.learned.doppler.policy import DualPolicy, dual_network, dual_policy, policy_card, stored_policy
from hsdag.methods.learned.policy import Policy, Rollout
from hsdag.methods.learned.training import Trainer
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import tables_of
from hsdag.scoring.policy_file import write_policy
from hsdag.scoring.schedule import ScheduleEvaluator

SIMULATED_SHARE = 0.2
"""Of the budget of a search that measures plans, the most that learning from simulated ones may take."""


class DopplerPlacer(LearnedPlacer[DopplerConfig]):
    """Learns the order and the devices of units: stage I imitates CRITICAL PATH, stages II and III learn from scores.

    Where plans are simulated, stage II is all there is; where they are measured, stage III goes on from it after
    ``simulated_updates``. Raises FileFormatError where ``initial`` is no policy of DOPPLER.
    """

    name = "doppler"
    gives_order = True
    options_type = DopplerConfig

    def __init__(self, options: DopplerConfig | None = None) -> None:
        super().__init__(options)
        self._network: DualNetwork | None = None
        self._stored = None if self.options.initial is None else stored_policy(Path(self.options.initial))
        if self._stored is not None:
            networks = {**self._stored.card["options"], "begins_as": Beginning.NOTHING}
            self.options, self.is_trained = replace(self.options, **networks), True

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:  # noqa: ARG002
        _compile_decoding()

    def policy(self, problem: Problem, generator: torch.Generator) -> Policy:
        """SEL and PLC over the costs of the problem's units."""
        assert problem.costs is not None
        self._network = network = dual_network(self.options, generator)
        if self._stored is not None:
            network.load_state_dict({name: torch.from_numpy(w) for name, w in self._stored.weights.items()})
        if not self.options.own_scores:
            return dual_policy(network, problem.costs, self.options)
        own = OwnScores(network, problem.costs.num_ops, problem.costs.num_devices)
        return dual_policy(own, problem.costs, self.options)

    def save(self, path: Path) -> None:
        """Write what was learned, for ``initial``. Raises SearchError before a search, OutputError."""
        if self._network is None:
            raise SearchError("there is no policy before a search")
        write_policy(path, self._network.state_dict(), policy_card(self.name, self.options))

    def learns_before(self, policy: Policy, incumbent: Incumbent, generator: torch.Generator) -> bool:
        """Stage II before stage III; the plans that are simulated are not among those that are asked for."""
        if incumbent.is_cheap or self.options.simulated_updates == 0:
            return False
        if incumbent.checkpoint is not None and incumbent.checkpoint.load() is not None:
            return True
        problem, most, many = incumbent.problem, self.options.simulated_updates, DopplerConfig()
        trainer = Trainer(
            self.name,
            policy,
            ScheduleEvaluator(incumbent.costs, problem.semantics, problem.objective),
            replace(
                self.options,
                updates=most,
                plans_per_update=many.plans_per_update,
                kept_per_update=many.kept_per_update,
            ),
            generator,
            singles=singles_of(problem),
            teacher=self.teacher(policy, problem),
        )
        trainer.begin()
        for _ in range(most):
            incumbent.check()
            if incumbent.elapsed_s > SIMULATED_SHARE * incumbent.limits.seconds:
                break
            trainer.update()
        return True

    def teacher(self, policy: Policy, problem: Problem) -> Callable[[int, torch.Generator], list[Rollout]] | None:  # noqa: ARG002
        """CRITICAL PATH (stage I), which a trained policy is beyond."""
        return None if self.is_trained else cast("DualPolicy", policy).teacher


def _compile_decoding() -> None:
    """Have the loop of sequential decoding compiled, where the machine has not yet."""
    n, d, f, h, k = 2, 2, len(FEATURES), 1, 1
    shapes = ((n,), (n, k), (n, k), (f, h), (h,), (h, k), (k,), (f,), (n, d))
    scores = Scores(*(np.zeros(shape, np.float32) for shape in shapes))
    decode(tables_of(ScheduleProblem.from_arrays([[1.0] * d] * n, [(0, 1)])), scores, Rules(), np.zeros(1, np.uint64))
