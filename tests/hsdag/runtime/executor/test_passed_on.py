"""Parts whose results pass on what they read, at sizes that differ from one inference to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.placement.prepared import prepare
from hsdag.runtime.executor import cut, merging
from hsdag.runtime.executor.compiling import compile_placed
from hsdag.runtime.executor.openvino_backend import passed_on
from tests.hsdag.runtime.executor.placing import placed

Builder = Callable[[ov.Node], list[ov.Node]]


def convert(x: ov.Node) -> ov.Node:
    node: ov.Node = opset13.convert(x, "f32")
    return node


def column(x: ov.Node) -> ov.Node:
    node: ov.Node = opset13.reshape(x, opset13.constant(np.array([-1, 1])), special_zero=False)
    return node


BUILDERS: dict[str, Builder] = {
    "a Convert": lambda x: [convert(x)],
    "there and back": lambda x: [convert(opset13.convert(x, "f64"))],
    "behind a Reshape": lambda x: [convert(column(x))],
    "beside other work": lambda x: [convert(x), opset13.exp(convert(x))],
    "twice": lambda x: [convert(x), convert(x)],
}
"""What the second device does; each gives its input, in some shape, or the exponential of that."""


def tanh_and(build: Builder) -> ov.Model:
    x = opset13.parameter(ov.PartialShape([-1]), np.float32)
    x.set_friendly_name("x")
    return ov.Model([opset13.result(y) for y in build(opset13.tanh(x))], [x], "passing")


def assert_right(model: ov.Model, run: Callable[[np.ndarray], Sequence[np.ndarray]], sizes: Sequence[int]) -> None:
    for size in sizes:
        x = np.linspace(1.0, 2.0, size, dtype=np.float32)
        for k, found in enumerate(run(x)):
            is_exp = model.outputs[k].get_node().input_value(0).get_node().get_type_name() == "Exp"
            expected = np.exp(np.tanh(x)) if is_exp else np.tanh(x)
            np.testing.assert_allclose(np.asarray(found).reshape(-1), expected, atol=1e-5)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_part_that_passes_on_its_input_is_right_at_all_sizes(build: Builder) -> None:
    model, sizes = tanh_and(build), np.random.default_rng(0).integers(1, 2000, 100).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "JOIN_TYPES", frozenset())
        patch.setattr(merging, "MOST_TRIALS", 0)
        compiled = compile_placed(model, placed(model, lambda name, _: int(name != "x")))
    with compiled:
        assert len(compiled.cut.subgraphs) > 1
        request = compiled.create_infer_request()
        assert_right(model, lambda x: request.infer({0: x}).to_tuple(), [72, 48, *sizes])


def test_hetero_is_right_where_a_convert_of_no_effect_was_placed_apart() -> None:
    model, core = tanh_and(BUILDERS["a Convert"]), ov.Core()
    placement = placed(model, lambda name, _: int(name != "x"))
    for device in placement.devices:
        device.register(core)
    prepared = prepare(model)
    names = {device.name: device.openvino_name for device in placement.devices}
    apart = prepared.place([names[name] for name in placement.devices_of(prepared.graph)])
    request = core.compile_model(apart, f"HETERO:{','.join(names.values())}").create_infer_request()
    assert_right(model, lambda x: request.infer({0: x}).to_tuple(), [72, 48])


def test_outputs_that_the_plugin_passes_on_are_found() -> None:
    x, y = (opset13.parameter(ov.PartialShape([-1]), np.float32) for _ in range(2))
    nodes = [opset13.tanh(x), convert(y), convert(column(y))]
    model = ov.Model([opset13.result(node) for node in nodes], [x, y], "passing")
    assert passed_on(ov.Core().compile_model(model, "CPU")) == {1: 1}
