"""Examine a model on the devices of a machine: what HETERO would do with it, and what reduced precision does to it.

Legend: N ops of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import openvino as ov

from hsdag.commands.doctor.findings import HALF, SHRUNK, Finding, Questions, Severity, finding, of_outputs
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.build import graph_of, name_uniquely
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import input_name
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.placement import Record
from hsdag.runtime.measuring.differences import CPU_IN_SINGLE
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import DeviceFacts, ask

ENDS = ("Parameter", "Result", "Constant")
"""Op types that follow their neighbours; a device that does not list them refuses nothing."""

PIPELINE_PARALLEL = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}


class HeteroDevice(Record):
    """What HETERO gives a device: ops, including constants and Parameters, and bytes of the constants they read."""

    name: str
    ops: int
    weight_bytes: int


class HeteroChoice(Record):
    """Where HETERO runs a model's ops; ``devices`` are in order of priority.

    ``failure`` says why it would not compile the model. ``parted_variables`` are state variables that ops on several
    devices read and write, which HETERO loses.
    """

    target: str
    policy: str | None
    failure: str | None
    devices: tuple[HeteroDevice, ...]
    parted_variables: dict[str, tuple[str, ...]]

    @staticmethod
    def of(
        graph: ComputationGraph, devices: Sequence[str], chosen: Sequence[str], policy: str | None = None
    ) -> HeteroChoice:
        """Return the choice for devices [N] that HETERO chose for ops, "" for none; a Result goes with the op it reads.

        Where a further device was added over the GPU plugin, that plugin answers with its own device name; names that
        are not in ``devices`` are therefore appended.
        """
        home = np.array(chosen, dtype=object)
        for v in (v for v, op_type in enumerate(graph.op_types) if op_type == "Result"):
            home[v] = home[graph.predecessors.of(v)[0]]
        places: dict[str, dict[str, None]] = {}
        for variable, name in zip(graph.variables, home.tolist(), strict=True):
            if variable:
                places.setdefault(variable, {})[name or "no device"] = None
        names = tuple(dict.fromkeys((*devices, *filter(None, chosen))))
        records = []
        for name in names:
            read = np.unique(graph.edge_src[home[graph.edge_dst] == name])
            weight_bytes = int(graph.weight_bytes[read].sum())
            records.append(HeteroDevice(name=name, ops=int((home == name).sum()), weight_bytes=weight_bytes))
        nowhere = [v for v, name in enumerate(chosen) if not name]
        failure = None
        if nowhere:
            op = f"{graph.op_names[nowhere[0]]!r} ({graph.op_types[nowhere[0]]})"
            failure = f"no device of {', '.join(devices)} runs {len(nowhere)} of {graph.num_ops} ops, for example {op}"
        parted = {key: tuple(on) for key, on in places.items() if len(on) > 1}
        target = "HETERO:" + ",".join(names)
        return HeteroChoice(
            target=target, policy=policy, failure=failure, devices=tuple(records), parted_variables=parted
        )


class ModelReport(Record):
    """A model, what HETERO would do with it, and how far its outputs are from the CPU's in f32, by device."""

    name: str
    ops: int
    weight_bytes: int
    open_inputs: tuple[str, ...]
    """Inputs of dynamic shapes without typical data."""
    unsupported: dict[str, list[str]]
    """Ops that a device does not run, by device."""
    variables: tuple[str, ...]
    outputs: dict[str, dict[str, float | None] | None]
    imprecise: tuple[str, ...]
    """Devices in half precision whose outputs are far from the CPU's in f32, or not finite where the CPU's are."""
    hetero: tuple[HeteroChoice, ...]


def examined_model(
    questions: Questions,
    model: ov.Model,
    scenarios: Sequence[Scenario],
    devices: Sequence[tuple[DeviceSpec, DeviceFacts]],
) -> ModelReport:
    """Examine a model; findings on HETERO and on precision go to ``questions``.

    Args:
        scenarios: Typical data of a model of dynamic shapes.
        devices: Devices that load, with their facts.
    """
    name_uniquely(model)
    graph = graph_of(model)
    specs = tuple(spec for spec, _ in devices)
    refused = {spec.name: _refused(questions, graph, spec) for spec in specs}
    hetero = _chosen(questions, graph, specs, refused)
    memory = {spec.openvino_name: facts.memory_bytes for spec, facts in devices}
    for choice in hetero:
        questions.findings += findings_on(choice, memory)
    dynamic = [input_name(port) for port in model.inputs if port.get_partial_shape().is_dynamic]
    open_inputs = () if scenarios else tuple(dynamic)
    outputs: dict[str, dict[str, float | None] | None] = {}
    imprecise: list[str] = []
    for spec, facts in () if open_inputs else devices:
        question = ask(OpenVinoMeasurer.compare_outputs, (spec, CPU_IN_SINGLE))
        gap = questions.ask(spec.name, "comparing the model's outputs", question)
        outputs[spec.name] = None if gap is None else dict(gap)
        if gap and gap["max_relative"] != 0:
            questions.findings.append(of_outputs(spec.name, gap["max_relative"], facts.precision))
            is_far = facts.precision in HALF and questions.findings[-1].severity is not Severity.NOTE
            imprecise += [spec.name] * is_far
    for spec in specs if dynamic and scenarios and not any(graph.variables) else ():
        shrunk = questions.ask(
            spec.name, "running smaller inputs after larger ones", ask(OpenVinoMeasurer.compare_shrunk, spec)
        )
        if shrunk is not None and (shrunk["max_relative"] is None or shrunk["max_relative"] > SHRUNK):
            questions.say("shrinking", spec.name)
    return ModelReport(
        name=graph.name,
        ops=graph.num_ops,
        weight_bytes=int(graph.weight_bytes.sum()),
        open_inputs=open_inputs,
        unsupported={name: ops for name, ops in refused.items() if ops is not None},
        variables=tuple(sorted(set(filter(None, graph.variables)))),
        outputs=outputs,
        imprecise=tuple(imprecise),
        hetero=tuple(hetero),
    )


def _refused(questions: Questions, graph: ComputationGraph, spec: DeviceSpec) -> list[str] | None:
    """Return the ops that a device does not run, after adding a finding; None if it does not answer."""
    chosen = questions.ask(
        spec.name, "asking which ops it runs", ask(OpenVinoMeasurer.choices, spec.openvino_name, (spec,))
    )
    if chosen is None:
        return None
    ops = [v for v, name in enumerate(chosen) if not name and graph.op_types[v] not in ENDS]
    if ops:
        types = ", ".join(sorted({graph.op_types[v] for v in ops}))
        questions.say("unsupported", spec.name, count=len(ops), types=types)
    return [graph.op_names[v] for v in ops]


def _chosen(
    questions: Questions,
    graph: ComputationGraph,
    specs: tuple[DeviceSpec, ...],
    refused: Mapping[str, Sequence[str] | None],
) -> list[HeteroChoice]:
    """Return what HETERO says it would do, without and with PIPELINE_PARALLEL."""
    choices: list[HeteroChoice] = []
    names = DeviceIndex(specs).openvino_names
    for policy in ({}, PIPELINE_PARALLEL) if len(specs) > 1 else ():
        question = ask(OpenVinoMeasurer.choices, "HETERO:" + ",".join(names), specs, policy)
        chosen = questions.ask("HETERO", " ".join(["distributing the model", *policy.values()]), question)
        if chosen is None and any(graph.variables) and any(refused.values()):
            questions.say("stateful", "HETERO")
        if chosen is not None:
            choices.append(HeteroChoice.of(graph, names, chosen, next(iter(policy.values()), None)))
    return choices


def findings_on(choice: HeteroChoice, memory_bytes: Mapping[str, float | None]) -> Iterator[Finding]:
    """Yield findings on what HETERO would do with the model."""
    about = " ".join(filter(None, (choice.target, choice.policy)))
    if choice.failure is not None:
        yield finding("refused", about, reason=choice.failure)
        return
    for variable, names in choice.parted_variables.items():
        yield finding("parted", about, variable=variable, devices=" and ".join(names))
    busy = [device.name for device in choice.devices if device.ops]
    for device in choice.devices:
        memory = memory_bytes.get(device.name)
        if memory is not None and device.weight_bytes > memory:
            yield finding("overfull", about, name=device.name, weights=device.weight_bytes / 1e9, memory=memory / 1e9)
        if not device.ops:
            yield finding("idle", about, name=device.name, busy=f"{' and '.join(busy)} run{'s' * (len(busy) < 2)}")
