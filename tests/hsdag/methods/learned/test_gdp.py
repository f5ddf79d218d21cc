"""GDP's attention: a segment sees itself and the one before it, which gets no gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hsdag.ir.errors import OptionError
from hsdag.methods.learned.gdp import FARTHEST, GdpConfig, Segments
from hsdag.methods.learned.inputs import tokens_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from tests.hsdag.methods.learned.policies import generator

ALL = torch.ones(3, 4, dtype=torch.bool)


def layer(*, relative: bool = True) -> Segments:
    return Segments(8, 2, generator(), relative=relative)


def test_a_segment_sees_itself_and_the_one_before_it() -> None:
    h = torch.randn(3, 4, 8, generator=generator())
    changed = h.clone()
    changed[0, 1] += 1.0
    difference = (layer()(h, ALL) - layer()(changed, ALL)).abs().amax(dim=(1, 2))
    assert bool((difference[:2] > 1e-3).all())
    assert difference[2] == 0.0
    changed = h.clone()
    changed[2] += 1.0  # no segment comes before the first
    assert torch.equal(layer()(h, ALL)[:2], layer()(changed, ALL)[:2])


def test_the_segment_before_gets_no_gradient() -> None:
    h = torch.randn(3, 4, 8, generator=generator(), requires_grad=True)
    (gradient,) = torch.autograd.grad(layer()(h, ALL)[1].square().sum(), h)
    assert gradient[1].abs().max() > 0
    assert gradient[0].abs().max() == 0


def test_what_fills_up_the_last_segment_is_not_seen() -> None:
    h, is_unit = torch.randn(3, 4, 8, generator=generator()), ALL.clone()
    is_unit[2, 2:] = False
    changed = h.clone()
    changed[2, 3] += 1.0
    assert torch.equal(layer()(h, is_unit)[2, :2], layer()(changed, is_unit)[2, :2])


def test_distances_count_in_topological_order_across_segments() -> None:
    """With a bias for the unit just before alone, attention returns that unit's value, in whichever segment it is."""
    attention = layer()
    assert attention.distance is not None
    with torch.no_grad():
        attention.attention.in_proj_weight[:8].zero_()  # queries
        attention.attention.in_proj_bias.zero_()
        attention.distance[:, FARTHEST - 1] = 50.0
    h = torch.randn(3, 4, 8, generator=generator())
    changed = h.clone()
    changed[0, 3] += 1.0
    difference = (attention(h, ALL) - attention(changed, ALL)).abs().amax(dim=2)
    assert difference[1, 0] > 1e-3
    assert bool((difference[1, 1:] < 1e-5).all())


def test_shards_that_cost_the_same_can_be_told_apart() -> None:
    """Twelve ops without edges that are alike but for their places: what is learned of one is not learned of all."""
    problem = problem_of(ScheduleProblem.from_arrays(np.ones((12, 2)), []))
    tokens = tokens_of(problem, with_costs=True)
    assert len(torch.unique(tokens, dim=0)) == 12


def test_a_width_that_heads_do_not_share_evenly_is_refused() -> None:
    with pytest.raises(OptionError, match="width must be a multiple of heads, 4, not 30"):
        GdpConfig(width=30)
