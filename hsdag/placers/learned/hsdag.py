"""HsdagPlacer: the HSDAG method (learned groups, learned placement, REINFORCE) as a placer."""

from __future__ import annotations

import torch

from hsdag.evaluators.base import Evaluator
from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import IntArray
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.encoder import standardise
from hsdag.learning.hsdag.reinforce import Trainer
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.runtime.problems.problem import Problem


class HsdagPlacer(Placer):
    """Learns groups of units and their devices together; see docs/hsdag-method.md.

    The same config, seed and evaluations give the same sequence of placements.
    """

    def __init__(self, config: HsdagConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._trainer: Trainer | None = None

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:
        """Learn until the method converges, and return the best placement [U] it evaluated.

        Raises SearchStopped when the evaluator does, SearchError when ``checkpoint`` holds another search.
        """
        x = standardise(feature_matrix(problem.units, feature_groups(self._config)).values)
        self._trainer = Trainer(problem, evaluator, x, self._config, self._seed)
        return self._trainer.run(checkpoint)

    def most_probable(self) -> IntArray:
        """The placement [U] that the policy believes in, evaluated or not. Raises SearchError before a search."""
        if self._trainer is None:
            raise SearchError("there is no policy before a search")
        return self._trainer.most_probable()

    def policy_tensors(self) -> dict[str, torch.Tensor]:
        """The weights by name, for safetensors; empty before the first search."""
        if self._trainer is None:
            return {}
        return {k: v.detach().clone().contiguous() for k, v in self._trainer.policy.state_dict().items()}


def feature_groups(config: HsdagConfig) -> tuple[str, ...]:
    """The feature groups that the options of Table 3 leave on, in the order of the feature matrix."""
    off: set[str] = set()
    if not config.output_shape:
        off.add("output_shape")
    if not config.node_id:
        off.add("positional")
    if not config.structure:
        off.update(STRUCTURE_GROUPS)
    return tuple(group for group in GROUPS if group not in off)


def make(settings: PlacerSettings) -> HsdagPlacer:
    """The placer of this method."""
    if settings.preset == "paper":
        return HsdagPlacer(HsdagConfig.paper(), settings.seed)
    return HsdagPlacer(HsdagConfig.many() if settings.is_cheap else HsdagConfig(), settings.seed)
