"""Applying and compiling placements with the real HETERO over two added CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as op

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError, PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.placement.placement import Placement
from tests.hsdag.runtime.executor.random_models import models

Place = Callable[[ov.Model, Callable[[int], str]], Placement]
Alternating = Callable[[ov.Model], Placement]
Run = Callable[[Any, ov.Model], list[NDArray[np.float32]]]


def affinities(model: ov.Model) -> dict[str, str]:
    return {node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str) for node in model.get_ops()}


def assert_agrees(core: ov.Core, placement: Placement, model: ov.Model, run: Run) -> None:
    """The placed model computes what plain CPU computes, within 1e-4 of the largest value."""
    expected = run(core.compile_model(model.clone(), "CPU"), model)
    found = run(placement.compile(core, model), model)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= 1e-4 * max(1.0, float(np.abs(other).max()))


def test_every_op_gets_openvinos_name_of_its_device(model: ov.Model, alternating: Alternating) -> None:
    placement = alternating(model)
    constraints = colocate(graph_of(model))
    names, devices = graph_of(model).op_names, placement.devices_of(graph_of(model))
    found = affinities(placement.apply(model))
    for v in np.flatnonzero(~constraints.floating).tolist():
        assert found[names[v]] == f"CPU_{devices[v]}"


def test_one_device_for_all_compiles_plainly(core: ov.Core, model: ov.Model, place: Place) -> None:
    placement = place(model, lambda _: "SLOW")
    assert placement.compile(core, model).get_property("EXECUTION_DEVICES") == ["CPU_SLOW"]
    assert set(affinities(placement.apply(model)).values()) == {"CPU_SLOW"}


@pytest.mark.parametrize("seed", range(3))
def test_computed_shapes_and_axes_are_no_inputs_of_submodels(core: ov.Core, place: Place, run: Run, seed: int) -> None:
    """They come from the shape of an op that is read for nothing else."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    first = op.relu(x)
    last = op.gather(op.shape_of(op.transpose(first, op.constant([2, 0, 1]))), op.constant([0]), op.constant(0))
    target = op.concat([op.constant([-1]), last], 0)
    flat = op.sigmoid(op.reshape(op.tanh(first), target, False))
    total = op.add(flat, op.reshape(first, target, False))
    model = ov.Model([op.result(op.reduce_max(total, op.subtract(last, op.constant([3])), True))], [x], "m")
    drawn = np.random.default_rng(seed).choice(["FAST", "SLOW"], 20)
    assert_agrees(core, place(model, lambda s: str(drawn[s % 20])), model, run)


def test_a_map_that_is_not_the_models_or_parts_what_belongs_together_is_refused(model: ov.Model, place: Place) -> None:
    placement = place(model, lambda _: "FAST")
    whole = placement.affinity
    for affinity, complaint in (
        (
            {name: device for name, device in whole.items() if name != "Relu:0"},
            "disagree on 1 ops, the first is 'Relu:0'",
        ),
        ({**whole, "stranger": "FAST"}, "disagree on 1 ops, the first is 'stranger'"),
        ({**whole, "Parameter:0": "SLOW"}, r"ops 'x' and 'conv1' must share a device, .* on SLOW and FAST"),
    ):
        with pytest.raises(PlacementError, match=complaint):
            placement.model_copy(update={"affinity": affinity}).apply(model)


def test_the_device_a_map_gives_a_floating_op_does_not_matter(
    core: ov.Core, model: ov.Model, alternating: Alternating, run: Run
) -> None:
    placement = alternating(model)
    floating = {op for op, name in placement.names.items() if name in ("shared", "first", "shape")}
    moved = {**placement.affinity, **dict.fromkeys(floating, "SLOW")}
    straight = affinities(placement.apply(model))
    assert affinities(placement.model_copy(update={"affinity": moved}).apply(model)) == straight


def test_a_device_that_is_absent_is_named(core: ov.Core, model: ov.Model, place: Place) -> None:
    placement = place(model, lambda _: "FAST")
    devices = [DeviceSpec(name="FAST", plugin="CPU", properties={"NO_SUCH_KEY": "1"})]
    with pytest.raises(DeviceError, match="device 'FAST'"):
        placement.model_copy(update={"devices": devices}).compile(ov.Core(), model)


@pytest.mark.slow
@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(model=models, devices=st.lists(st.sampled_from(["FAST", "SLOW"]), min_size=40, max_size=40))
def test_random_models_run_alike_under_random_placements(
    core: ov.Core, place: Place, run: Run, model: ov.Model, devices: list[str]
) -> None:
    assert_agrees(core, place(model, lambda s: devices[s % 40]), model, run)
