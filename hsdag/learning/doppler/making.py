"""Networks and policies of DOPPLER from options and problems."""

from __future__ import annotations

import torch

from hsdag.learning.decoding import Rules
from hsdag.learning.decoding_kernel import FEATURES, PAPER_FEATURES
from hsdag.learning.doppler.config import DopplerConfig
from hsdag.learning.doppler.network import DualNetwork
from hsdag.learning.doppler.policy import DualPolicy
from hsdag.learning.inputs import NUM_PAPER, NUM_WIDE, inputs_of
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


def dual_network(options: DopplerConfig, generator: torch.Generator) -> DualNetwork:
    """The untrained network; it reads any problem."""
    network = DualNetwork(
        NUM_WIDE if options.wide_features else NUM_PAPER,
        len(FEATURES) if options.wide_features else PAPER_FEATURES,
        options.width,
        options.layers,
        options.encoder,
        generator,
        is_mean=options.mean_of_embeddings,
        is_direct=options.direct,
        logit_range=options.logit_range,
    )
    if options.begins_as_heft:
        network.begin_as_heft()
    return network


def dual_policy(network: DualNetwork, costs: ScheduleProblem, options: DopplerConfig) -> DualPolicy:
    """The network's policy over plans of a problem."""
    rules = Rules(
        by_path=not options.learns_order,
        by_start=not options.learns_devices,
        mean_of_seen=options.mean_of_embeddings,
    )
    return DualPolicy(network, inputs_of(costs, is_wide=options.wide_features), rules)
