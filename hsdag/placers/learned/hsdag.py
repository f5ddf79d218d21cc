"""HsdagPlacer: the HSDAG method (learned groups, learned placement, REINFORCE) as a placer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import IntArray
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.encoder import standardise
from hsdag.learning.hsdag.reinforce import Trainer
from hsdag.placers.base import Placer, Preset
from hsdag.placers.incumbent import Incumbent, Status


class HsdagPlacer(Placer[HsdagConfig]):
    """Learns groups of units and their devices together; see docs/hsdag-method.md.

    The same config, seed and evaluations give the same sequence of placements.
    """

    name = "hsdag"
    needs_costs = False
    learns = True
    _trainer: Trainer | None = None

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[HsdagConfig]]:
        """Ours, for few or for many evaluations; and the paper's, which measures all, with units of any share."""
        paper = Preset(HsdagConfig.paper(), reward="measured", max_share=1.0, measurement=SearchMeasurement.paper())
        return {"default": Preset(HsdagConfig.many() if is_cheap else HsdagConfig()), "paper": paper}

    def _search(self, incumbent: Incumbent) -> Status:
        x = standardise(feature_matrix(incumbent.problem.units, feature_groups(self.options)).values)
        self._trainer = Trainer(incumbent.problem, incumbent, x, self.options, incumbent.limits.seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the policy is small: more threads make it slower, and disturb what is measured
        try:
            self._trainer.run(incumbent.checkpoint)
        finally:
            torch.set_num_threads(threads)
        return Status.FEASIBLE

    def most_probable(self) -> IntArray:
        """The placement [U] that the policy believes in, evaluated or not. Raises SearchError before a search."""
        if self._trainer is None:
            raise SearchError("there is no policy before a search")
        return self._trainer.most_probable()


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


PLACER = HsdagPlacer
