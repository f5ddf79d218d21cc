"""DopplerPlacer: DOPPLER, a policy that selects ops and one that places them, as a placer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from hsdag.ir.errors import SearchError
from hsdag.learning.doppler.config import DUAL_OPTIONS, DopplerConfig
from hsdag.learning.doppler.making import dual_network, dual_policy
from hsdag.learning.doppler.policy import DualPolicy
from hsdag.learning.policy import Policy, Rollout
from hsdag.learning.policy_file import PolicyFile, read_policy, write_policy
from hsdag.placers.base import Preset
from hsdag.placers.learned.base import LearnedPlacer, as_in_paper
from hsdag.runtime.problems.problem import Problem


class DopplerPlacer(LearnedPlacer[DopplerConfig]):
    """Learns the order and the devices of units: stage I imitates CRITICAL PATH, stages II and III learn from scores.

    Which of the two later stages it is depends on the evaluator: simulated or measured plans.
    """

    name = "doppler"
    gives_order = True
    options_type = DopplerConfig

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[DopplerConfig]]:  # noqa: ARG003
        """Ours, and the paper's."""
        paper = as_in_paper(DopplerConfig.paper())
        return {"default": Preset(DopplerConfig()), "paper": paper}

    def policy(self, problem: Problem, generator: torch.Generator) -> Policy:
        """SEL and PLC over the costs of the problem's units."""
        assert problem.costs is not None
        options, stored = self._beginning()
        network = dual_network(options, generator)
        if stored is not None:
            network.load_state_dict(dict(stored.weights))
        return dual_policy(network, problem.costs, options)

    def save(self, path: Path) -> None:
        """Write what was learned, for ``initial``. Raises SearchError before a search, OutputError."""
        if self._policy is None:
            raise SearchError("there is no policy before a search")
        options, _ = self._beginning()
        card = {"name": self.name, "options": {name: getattr(options, name) for name in DUAL_OPTIONS}}
        write_policy(path, self._policy.network.state_dict(), card)

    def _beginning(self) -> tuple[DopplerConfig, PolicyFile | None]:
        """The options, those of networks from the policy file to begin with; and that file."""
        options = self.options
        if options.initial is None:
            return options, None
        stored = read_policy(Path(options.initial))
        return replace(options, **{name: stored.card["options"][name] for name in DUAL_OPTIONS}), stored

    def teacher(self, policy: Policy) -> Callable[[int, torch.Generator], list[Rollout]]:
        """CRITICAL PATH (stage I)."""
        return cast("DualPolicy", policy).teacher


PLACER = DopplerPlacer
