"""PythonOp: an op that hands on what it reads after a call of the test, so that the test decides what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

Call = Callable[[], object]
CALLS: dict[str, Call] = {}
"""What ops do, by their types: OpenVINO makes them anew when it clones a model."""


class PythonOp(ov.Op):  # type: ignore[misc]
    """Runs on the CPU, in the thread of the inference, as reference ops do."""

    def __init__(self, inputs: list[Any] | None = None) -> None:
        super().__init__(self, inputs)
        if inputs:
            self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: list[Any]) -> PythonOp:
        return type(self)(new_inputs)

    def get_type_info(self) -> Any:
        return ov.DiscreteTypeInfo(type(self).__name__, "extension")

    def evaluate(self, outputs: list[Any], inputs: list[Any]) -> bool:
        CALLS[type(self).__name__]()
        inputs[0].copy_to(outputs[0])
        return True

    def has_evaluate(self) -> bool:
        return True


class FirstOp(PythonOp):
    """Placed on the first device."""


class SecondOp(PythonOp):
    """Placed on the second device, behind the first."""


class Gate:
    """A call that waits until it is opened; tells when it is entered."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.left = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        self.opened.wait(30)
        self.left.set()


def python_model(first: Call = bool, second: Call = bool, size: int = 4) -> ov.Model:
    """x, Relu, FirstOp, Tanh on one device; SecondOp, Sigmoid on the other; and a Cosine of x on that one too."""
    CALLS.update(FirstOp=first, SecondOp=second)
    x = op.parameter(ov.PartialShape([size]), np.float32, name="x")
    one = FirstOp([op.relu(x, name="relu")])
    one.set_friendly_name("one")
    two = SecondOp([op.tanh(one, name="tanh")])
    two.set_friendly_name("two")
    ends = [op.sigmoid(two, name="sigmoid"), op.cos(x, name="cos")]
    return ov.Model([op.result(end) for end in ends], [x], "python")


def device_of(name: str, _: int) -> int:
    """relu, one and tanh on the first device."""
    return int(name in ("two", "sigmoid", "cos"))


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The first output of ``python_model``."""
    return np.asarray(1 / (1 + np.exp(-np.tanh(np.maximum(x, 0)))))
