"""Teaching of the parsing network: from plans of an expert to whether the ends of an edge belong on one device.

Legend: E edges, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.learned.networks import Mlp
from hsdag.methods.lists.parsing import NUM_INPUTS, Layer, edge_inputs
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.training.problems import TrainingProblem

WIDTHS = (NUM_INPUTS, 48, 24, 1)
STEPS, BATCH, LEARNING_RATE, DECAY = 1500, 2048, 3e-3, 1e-3
"""Steps of AdamW, each on so many edges, every problem as often as any other; the rate falls linearly to 0."""


def edges_of_experts(problem: TrainingProblem) -> tuple[FloatArray, FloatArray]:
    """What the network reads of every edge [E, F], and the share of the expert's plans [E] where its ends are together.

    None of either where there is no plan.
    """
    tables = tables_of(problem.costs)
    source = np.repeat(np.arange(len(tables.time_s)), np.diff(tables.out_first))
    inputs = edge_inputs(tables, levels_of(tables))
    if not problem.experts:
        return inputs[:0], np.zeros(0)
    places = [plan.placement for plan in problem.experts]
    return inputs, np.mean([place[source] == place[tables.out_op] for place in places], axis=0)


def taught_parsing(
    problems: Sequence[TrainingProblem], seed: int, check: Callable[[], None] = lambda: None, steps: int = STEPS
) -> list[Layer]:
    """The layers of a network that was taught by the plans of experts. Raises what ``check`` does."""
    generator = torch.Generator().manual_seed(seed)
    found = [each for each in map(edges_of_experts, problems) if len(each[1])]
    network = Mlp(WIDTHS, generator)
    inputs = torch.from_numpy(np.concatenate([np.zeros((0, NUM_INPUTS)), *(x for x, _ in found)])).float()
    together = torch.from_numpy(np.concatenate([np.zeros(0), *(y for _, y in found)])).float()
    mean, deviation = torch.zeros(NUM_INPUTS), torch.ones(NUM_INPUTS)
    if found:
        mean, deviation = inputs.mean(dim=0), inputs.std(dim=0).clamp(min=1e-3)
    x = (inputs - mean) / deviation
    chance = torch.cat([torch.full((len(y),), 1.0 / len(y)) for _, y in found]) if found else torch.zeros(0)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps if found else 0):
        check()
        which = torch.multinomial(chance, BATCH, replacement=True, generator=generator)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(x[which]).squeeze(1), together[which])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()
    own = [(each.weight.detach().double().t(), each.bias.detach().double()) for each in map(_linear, network.layers)]
    first = own[0][0] / deviation.double()[:, None]
    own[0] = first, own[0][1] - mean.double() @ first
    return [Layer(*(part.contiguous().numpy() for part in layer)) for layer in own]


def _linear(layer: torch.nn.Module) -> torch.nn.Linear:
    assert isinstance(layer, torch.nn.Linear)
    return layer
