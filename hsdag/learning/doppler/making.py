"""Networks and policies of DOPPLER from options and problems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError

from hsdag.evaluators.policy_file import PolicyFile, read_policy
from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.learning.decoding import Rules
from hsdag.learning.decoding_kernel import FEATURES, PAPER_FEATURES
from hsdag.learning.doppler.config import DUAL_OPTIONS, Beginning, DopplerConfig
from hsdag.learning.doppler.network import DualNetwork, OwnScores
from hsdag.learning.doppler.policy import DualPolicy
from hsdag.learning.inputs import NUM_PAPER, NUM_WIDE, inputs_of
from hsdag.learning.snapshot import without_gone
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


def dual_network(options: DopplerConfig, generator: torch.Generator) -> DualNetwork:
    """The untrained network; it reads any problem."""
    num_features = NUM_WIDE if options.wide_features else NUM_PAPER
    network = DualNetwork(
        num_features,
        len(FEATURES) if options.wide_features else PAPER_FEATURES,
        options.width,
        options.layers,
        options.encoder,
        generator,
        is_mean=options.mean_of_embeddings,
        is_direct=options.direct,
        logit_range=options.logit_range,
    )
    if options.begins_as is Beginning.HEFT:
        network.begin_as_heft()
    if options.begins_as is Beginning.CRITICAL_PATH:
        network.begin_as_critical_path()
    return network


def dual_policy(network: DualNetwork | OwnScores, costs: ScheduleProblem, options: DopplerConfig) -> DualPolicy:
    """The network's policy over plans of a problem."""
    rules = Rules(
        by_path=not options.learns_order,
        by_start=not options.learns_devices,
        mean_of_seen=options.mean_of_embeddings,
    )
    return DualPolicy(network, inputs_of(costs, is_wide=options.wide_features), rules)


METHOD = "doppler"


def policy_card(name: str, options: DopplerConfig) -> dict[str, Any]:
    """What the card of a policy has to say so that its networks can be made again."""
    return {"name": name, "method": METHOD, "options": {each: getattr(options, each) for each in DUAL_OPTIONS}}


def stored_policy(path: Path) -> PolicyFile:
    """A policy file of DOPPLER, whose weights fit the networks that its card describes.

    Options that the card leaves out, since they are newer than the file, have their defaults in the card that is
    returned. Raises FileFormatError for any other file.
    """
    stored = read_policy(path, METHOD)
    given, hints = stored.card.get("options"), get_type_hints(DopplerConfig)
    if isinstance(given, dict):
        given = without_gone(given)
    if not isinstance(given, dict) or not set(given) <= set(DUAL_OPTIONS):
        raise FileFormatError(
            f"the card of {path} may give {', '.join(DUAL_OPTIONS)} as options, not {given!r}; "
            "write one with 'hsdag train'"
        )
    options = {each: getattr(DopplerConfig, each) for each in DUAL_OPTIONS} | given
    try:
        for name, value in options.items():
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        made = dual_network(DopplerConfig(**options, begins_as=Beginning.NOTHING), torch.Generator()).state_dict()
    except ValidationError as error:
        raise FileFormatError(f"the card of {path} has {name}={value!r}: {error.errors()[0]['msg']}") from error
    except OptionError as error:
        raise FileFormatError(f"the card of {path} has an option that is wrong: {error}") from error
    if {n: t.shape for n, t in made.items()} != {n: t.shape for n, t in stored.weights.items()}:
        raise FileFormatError(f"{path} does not hold the weights of its card's networks; write one with 'hsdag train'")
    return replace(stored, card={**stored.card, "options": options})
