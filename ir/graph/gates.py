"""A rewrite of gated layers that keeps the CPU plugin from a division by zero when it computes in one thread.

In bf16 or f16 on processors with AMX, the plugin makes ``(act(x A) * (x B)) C`` one kernel, LLMMLP. That kernel divides
its rows between half as many pairs as it has threads: with one thread it divides by zero, and the process ends with
SIGFPE (2026.4.1).
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceSpec

THREADS = "INFERENCE_NUM_THREADS"
"""OpenVINO's property for the number of threads in which a CPU device computes."""

UNGATED = frozenset(("MatMul", "Split", "VariadicSplit"))
"""Op types whose outputs are gated: a layer, or a part of a layer that computes both factors."""


def has_one_thread(spec: DeviceSpec) -> bool:
    """Return whether a device is a CPU that is told to compute in one thread."""
    return spec.plugin == "CPU" and spec.properties.get(THREADS) == "1"


def keep_gates_apart(nodes: Iterable[ov.Node]) -> None:
    """Rewrite products a * b of two layer outputs that a MatMul reads as -(-a * b), which the kernel does not match.

    The numbers stay the same. New ops get the affinity of the product.
    """
    for layer in (node for node in nodes if node.get_type_name() == "MatMul"):
        product = layer.input_value(0).get_node()
        if product.get_type_name() != "Multiply" or not product.get_element_type().is_real():
            continue
        first, second = product.input_values()
        if UNGATED.isdisjoint(value.get_node().get_type_name() for value in (first, second)):
            continue
        negative = opset13.negative(first)
        again = opset13.multiply(negative, second)
        made = opset13.negative(again)
        if len(product.output(0).get_target_inputs()) == 1:
            again.set_friendly_name(product.get_friendly_name())
        if "affinity" in (info := product.get_rt_info()):
            for node in (negative, again, made):
                node.get_rt_info()["affinity"] = info["affinity"].astype(str)
        layer.input(0).replace_source_output(made.output(0))


def with_gates_apart(model: ov.Model, spec: DeviceSpec) -> ov.Model:
    """Return the model to compile for a device alone: a rewritten copy if the device has one thread."""
    if not has_one_thread(spec):
        return model
    clone = model.clone()
    keep_gates_apart(clone.get_ordered_ops())
    return clone
