"""A model on the devices of a machine: what HETERO would do with it, and what reduced precision does to it.

Legend: N ops of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from hsdag.commands.doctor import findings
from hsdag.commands.doctor.hetero import (
    PIPELINE_PARALLEL,
    Distribution,
    automatic_distribution,
    counted_bytes,
    given_distribution,
)
from hsdag.commands.doctor.machine import Device
from hsdag.commands.doctor.questions import Questions
from hsdag.ir.build import graph_of, name_uniquely, ordered_ops
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.reader import input_name
from hsdag.ir.scenario import Scenario
from hsdag.runtime.measuring.messages import CPU_IN_SINGLE, Choices, CompareOutputs, CompareShrunk, LargestValues

ENDS = ("Parameter", "Result", "Constant")
"""Ops that go with others: a device that does not list them refuses nothing."""

CHEAP_FLOPS, CHEAP_OPS = 2e10, 5000
"""A model of up to this size is run once more to look at every number in it."""


@dataclass(frozen=True, eq=False)
class ModelReport:
    """A model, what HETERO would do with it, and distances of outputs from the CPU's in f32, by device."""

    graph: ComputationGraph
    open_inputs: tuple[str, ...]  # of dynamic shapes for which there is no typical data
    refused: Mapping[str, Sequence[str]]  # ops that a device does not run
    overflowing: tuple[str, ...]  # devices that turn numbers of the model into infinity
    distributions: tuple[Distribution, ...]
    outputs: Mapping[str, Mapping[str, float | None] | None]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        graph = self.graph
        return {
            "name": graph.name,
            "ops": graph.num_ops,
            "weight_bytes": int(graph.weight_bytes.sum()),
            "counted_weight_bytes": counted_bytes(graph),
            "open_inputs": list(self.open_inputs),
            "unsupported": {name: list(ops) for name, ops in self.refused.items()},
            "variables": sorted(set(filter(None, graph.variables))),
            "outputs": dict(self.outputs),
            "overflowing": list(self.overflowing),
            "hetero": [
                {
                    "target": "HETERO:" + ",".join(found.devices),
                    "policy": found.policy,
                    "failure": found.failure,
                    "submodels": found.num_submodels,
                    "devices": [
                        {"name": name, "ops": ops, "submodels": found.submodels[name], "weight_bytes": weights}
                        for (name, ops), weights in zip(
                            found.ops.items(), found.weight_bytes(graph).values(), strict=True
                        )
                    ],
                }
                for found in self.distributions
            ],
        }


def examined_model(
    questions: Questions, model: ov.Model, scenarios: Sequence[Scenario], devices: Sequence[Device]
) -> ModelReport:
    """A model, with findings on what HETERO would do with it and on its numbers."""
    name_uniquely(model)
    graph = graph_of(model)
    specs = tuple(device.spec for device in devices)
    memory = {each.spec.openvino_name: each.facts.memory_bytes for each in devices if each.facts is not None}
    refused = _refused(questions, graph, specs)
    affinities = affinities_of(model)
    distributions = (
        [given_distribution(graph, affinities)] if any(affinities) else _distributions(questions, graph, specs, refused)
    )
    for found in distributions:
        questions.findings += findings.of_distribution(graph, found, memory)
    dynamic = [input_name(port) for port in model.inputs if port.get_partial_shape().is_dynamic]
    open_inputs = () if scenarios else tuple(dynamic)
    halves = tuple(each.spec.name for each in devices if each.facts is not None and each.facts.precision == "f16")
    largest = _largest_values(questions, graph, is_open=bool(open_inputs)) if halves else None
    beyond = findings.beyond_half_precision(graph, largest)
    if halves:
        constants = _largest_constants(model)
        questions.findings += findings.of_half_precision(graph, " and ".join(halves), constants, beyond)
    outputs = {} if open_inputs else {spec.name: _outputs(questions, spec) for spec in specs}
    if dynamic and scenarios and not any(graph.variables):
        for spec in specs:
            gap = questions.ask(spec.name, "running smaller inputs after larger ones", CompareShrunk(spec))
            questions.findings += findings.of_shrinking(spec.name, gap)
    overflowing = halves if beyond else ()
    return ModelReport(graph, open_inputs, refused, overflowing, tuple(distributions), outputs)


def _refused(questions: Questions, graph: ComputationGraph, specs: Sequence[DeviceSpec]) -> dict[str, list[str]]:
    """Ops by the devices that do not run them, which is a finding."""
    refused = {}
    for spec in specs:
        chosen = questions.ask(spec.name, "asking which ops it runs", Choices(spec.openvino_name, (spec,)))
        if chosen is not None:
            ops = [v for v, name in enumerate(chosen) if not name and graph.op_types[v] not in ENDS]
            refused[spec.name] = [graph.op_names[v] for v in ops]
            questions.findings += findings.of_support(spec.name, [graph.op_types[v] for v in ops])
    return refused


def _distributions(
    questions: Questions,
    graph: ComputationGraph,
    specs: tuple[DeviceSpec, ...],
    refused: Mapping[str, Sequence[str]],
) -> list[Distribution]:
    """What HETERO would choose by itself, without and with PIPELINE_PARALLEL."""
    found: list[Distribution] = []
    names = [spec.openvino_name for spec in specs]
    for policy in ({}, PIPELINE_PARALLEL) if len(specs) > 1 else ():
        doing = " ".join(["distributing the model", *policy.values()])
        chosen = questions.ask("HETERO", doing, Choices("HETERO:" + ",".join(names), specs, policy))
        if chosen is None and any(graph.variables) and any(refused.values()):
            text = "cannot distribute a model with state of which a device does not run every op"
            questions.findings.append(findings.danger("HETERO", text))
        if chosen is not None:
            found.append(automatic_distribution(graph, names, chosen, next(iter(policy.values()), None)))
    return found


def affinities_of(model: ov.Model) -> list[str]:
    """[N] the affinity of every op, "" where it has none."""
    infos = [node.get_rt_info() for _, node in ordered_ops(model)]
    return [str(info["affinity"].value) if "affinity" in info else "" for info in infos]


def _largest_values(questions: Questions, graph: ComputationGraph, *, is_open: bool) -> list[float] | None:
    """[N] the largest magnitude of what every op gives; None where that is not known, which is a finding."""
    if not is_open and graph.flops.sum() <= CHEAP_FLOPS and graph.num_ops <= CHEAP_OPS:
        return questions.ask("model", "searching it for numbers beyond f16", LargestValues(findings.F16_MOST))
    reason = "its inputs are of dynamic shapes: give --data-shape" if is_open else "it is large"
    questions.findings.append(findings.note("model", f"was not searched for numbers beyond f16, for {reason}"))
    return None


def _largest_constants(model: ov.Model) -> dict[str, float]:
    """The largest finite magnitudes of constants of a wider range than half precision, by name."""
    found = {}
    for name, node in ordered_ops(model):
        kind = node.get_type_name() == "Constant" and node.get_output_element_type(0).get_type_name()
        if kind in ("f32", "f64", "bf16"):
            values = node.data if kind != "bf16" else node.get_data(dtype=np.float32)
            found[name] = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    return found


def _outputs(questions: Questions, spec: DeviceSpec) -> Mapping[str, float | None] | None:
    gap = questions.ask(spec.name, "comparing the model's outputs", CompareOutputs((spec, CPU_IN_SINGLE)))
    if gap is not None:
        questions.findings += findings.of_outputs(spec.name, gap)
    return gap
