"""Requests: inputs and outputs go by port, index or name, are copied or read in place, and are refused if unfit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino import opset15

from hsdag.base.errors import ExecutionError, OptionError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.copies import CopiedModel, compile_copies
from hsdag.ir.ports import find_port

CPU = [(DeviceSpec("CPU", "CPU"), 1)]
A = np.asarray([[-1, 0, 1], [2, 3, 4]], dtype=np.float32) / 4
B = np.asarray([[5, 4, 3], [2, 1, 0]], dtype=np.float32) / 4
EXPECTED = [np.tanh(A), np.maximum(B, 0) + A, A]


@pytest.fixture(scope="module")
def model() -> ov.Model:
    """Inputs a, or first, and b, whose tensor has no name; outputs far, near, and a itself."""
    a, b = (op.parameter([2, 3], np.float32, name=name) for name in "ab")
    a.get_output_tensor(0).set_names({"a", "first"})
    results = [op.result(node) for node in (op.tanh(a), op.add(op.relu(b), a), a)]
    for result, name in zip(results, ("far", "near"), strict=False):
        result.get_output_tensor(0).set_names({name})
    return ov.Model(results, [a, b], "sample")


@pytest.fixture(scope="module")
def compiled(core: ov.Core, model: ov.Model) -> Iterator[CopiedModel]:
    with compile_copies(core, model, CPU) as compiled:
        yield compiled


def assert_right(found: Any) -> None:
    for k, expected in enumerate(EXPECTED):
        assert np.allclose(found[k], expected, atol=1e-6)


@pytest.mark.parametrize("inputs", [{"a": A, "b": B}, {"first": A, 1: B}, [A, B], (A, B), {"a": A.tolist(), "b": B}])
def test_inputs_go_by_name_index_or_order(compiled: CopiedModel, inputs: Any) -> None:
    assert_right(compiled(inputs))


def test_inputs_and_outputs_go_by_port_of_the_model_the_compiled_one_or_openvinos(
    core: ov.Core, model: ov.Model, compiled: CopiedModel
) -> None:
    for ports in (compiled, model, core.compile_model(model, "CPU")):
        found = compiled({ports.inputs[0]: A, ports.inputs[1]: B})
        assert_right([found[port] for port in ports.outputs])


def test_outputs_are_a_mapping_by_name_and_index_in_the_order_of_the_model(compiled: CopiedModel) -> None:
    found = compiled([A, B])
    assert found["near"] is found[1] is found.get("near")
    assert_right(list(found.values()))
    assert_right(found.to_tuple())
    assert ("near" in found, "nothing" in found, found.get("nothing")) == (True, False, None)


def test_a_tensor_of_the_callers_is_read_without_a_copy_and_never_written(compiled: CopiedModel) -> None:
    array, request = np.zeros((2, 3), dtype=np.float32), compiled.create_infer_request()
    request.set_tensor("a", ov.Tensor(array, shared_memory=True))
    array[:] = A
    assert_right(request.infer({"b": B}))
    request.infer({"a": B})
    assert (array == A).all()
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    assert_right(request.infer())
    assert_right([request.get_tensor(name).data for name in ("far", "near", "first")])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"c": A}, "the model has no input 'c'; it has"),
        ([A], "the model has 2 inputs, not 1"),
        (A, "the model has 2 inputs, not 1; pass a mapping or a list"),
        ({"a": A[0]}, r"input 'a' takes an array of shape \[2, 3\], not \[3\]"),
        ({"a": A.astype(np.complex64)}, "input 'a' takes f32 and cannot hold complex64"),
        ({"a": ov.Tensor(A.astype(np.float64))}, r"input 'a' takes f32 \[2, 3\], not f64 \[2, 3\]"),
        ({"a": ov.Tensor(A[:1])}, r"input 'a' takes f32 \[2, 3\], not f32 \[1, 3\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(compiled: CopiedModel, inputs: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}[^\n]*$"):
        compiled(inputs)
    assert_right(compiled([A, B]))


def test_ports_that_are_not_there_are_refused(compiled: CopiedModel) -> None:
    request = compiled.create_infer_request()
    with pytest.raises(OptionError, match="the model has no output 'nothing'; it has"):
        compiled([A, B])["nothing"]
    with pytest.raises(OptionError, match="the model has no output 3"):
        request.get_output_tensor(3)
    with pytest.raises(OptionError, match="the model has no input -1"):
        request.set_input_tensor(-1, ov.Tensor(A))
    with pytest.raises(OptionError, match="the model has no input or output 'nothing'"):
        request.get_tensor("nothing")
    with pytest.raises(OptionError, match=r"input 0 takes f32 \[2, 3\] as an ov.Tensor, not ndarray"):
        request.set_input_tensor(0, A)


def test_an_inference_that_ends_tells_what_it_was_started_with_and_one_that_runs_takes_nothing_else(
    compiled: CopiedModel,
) -> None:
    told, request = SimpleQueue[object](), compiled.create_infer_request()
    request.infer([A, B])
    request.set_callback(told.put, "mine")
    for userdata, expected in ((None, "mine"), ("other", "other"), (None, "other")):
        request.start_async(userdata=userdata)
        request.wait()
        assert told.get(timeout=60) == expected
    request.run = Future()
    with pytest.raises(ExecutionError, match="request is already running; wait for it, or create another one"):
        request.start_async()


def test_sizes_that_are_open_may_differ_every_time_and_strings_are_text(core: ov.Core) -> None:
    text = op.parameter([-1], ov.Type.string, name="text")
    model = ov.Model([op.result(opset15.string_tensor_unpack(text).output(2))], [text], "texts")
    with compile_copies(core, model, CPU) as compiled:
        request = compiled.create_infer_request()
        for words in (["ab", "c"], ["d"], ["e"]):
            assert bytes(request.infer([np.array(words)])[0]).decode() == "".join(words)
        with pytest.raises(OptionError, match="input 0 takes strings and cannot hold float32"):
            request.infer([A[0]])
        with pytest.raises(OptionError, match=r"input 0 takes an array of shape \['\?'\], not \[2, 3\]"):
            request.infer([A])
    assert [find_port(compiled.inputs, key) for key in (0, "text", 1, -1, "x", 1.5)] == [0, 0, *[None] * 4]
