"""Teaching of the parsing network: from plans of an expert to whether the ends of an edge belong on one device.

Legend: E edges, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray
from hsdag.methods.learned.networks import Mlp
from hsdag.methods.lists.parsing import NUM_INPUTS, Layer, edge_inputs
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.training.problems import TrainingProblem

WIDTHS = (NUM_INPUTS, 48, 24, 1)
STEPS, BATCH, LEARNING_RATE, DECAY = 1500, 2048, 3e-3, 1e-3
"""Steps of AdamW, each on so many edges, every problem as often as any other; the rate falls linearly to 0."""


def edges_of(problem: TrainingProblem, plan: Plan) -> tuple[FloatArray, BoolArray]:
    """What the network reads of every edge [E, 3 F], and whether its ends are together under a plan [E]."""
    tables = tables_of(problem.costs)
    source = np.repeat(np.arange(len(tables.time_s)), np.diff(tables.out_first))
    return edge_inputs(tables, levels_of(tables)), plan.placement[source] == plan.placement[tables.out_op]


def taught_parsing(
    problems: Sequence[TrainingProblem], seed: int, check: Callable[[], None] = lambda: None, steps: int = STEPS
) -> list[Layer]:
    """The layers of a network that was taught by the plans of experts. Raises what ``check`` does.

    Where there are none, it contracts nothing.
    """
    found = [edges_of(each, plan) for each in problems for plan in each.experts]
    if not found:
        return [Layer(np.zeros((NUM_INPUTS, 1)), np.full(1, -1.0))]
    generator = torch.Generator().manual_seed(seed)
    network = Mlp(WIDTHS, generator)
    inputs, together = (torch.from_numpy(np.concatenate(column)).float() for column in zip(*found, strict=True))
    mean, deviation = inputs.mean(dim=0), inputs.std(dim=0).clamp(min=1e-3)
    x = (inputs - mean) / deviation
    chance = torch.cat([torch.full((len(y),), 1.0 / len(y)) for _, y in found])
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=DECAY)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        check()
        which = torch.multinomial(chance, BATCH, replacement=True, generator=generator)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(x[which]).squeeze(1), together[which])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()
    weights = {name: weight.double() for name, weight in network.state_dict().items()}
    layers = [(weights[f"layers.{i}.weight"].t(), weights[f"layers.{i}.bias"]) for i in range(len(WIDTHS) - 1)]
    first = layers[0][0] / deviation.double()[:, None]
    layers[0] = first, layers[0][1] - mean.double() @ first
    return [Layer(*(part.contiguous().numpy() for part in layer)) for layer in layers]
