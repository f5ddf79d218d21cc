"""Preparing a model for placements: a clone in which every op reads constants of its own.

HETERO hands the results of one submodel to another as inputs, and may cut anywhere, also between a chain of
constants and the op that reads it. A shape, axis or pad that arrives as an input makes tensors dynamic, which the next
submodel refuses; a weight that arrives as an input is no longer compressed. But HETERO never cuts off a constant.
Therefore whatever is known before any data is folded to a constant, except large weights that are stored
compressed: they keep their decompression.

In a model that keeps state, every device has a copy of the ops between the model's inputs and its layers.

Legend: N ops of the model, M nodes of the clone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.base.errors import PlacementError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import corresponding_nodes, graph_of
from hsdag.ir.graph.colocation import known_ops, repeated_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, IntArray
from hsdag.ir.graph.folding import copied_constants, folded_clone, op_of_clone
from hsdag.ir.graph.gates import has_one_thread, keep_gates_apart
from hsdag.ir.graph.readers import read_instead
from hsdag.ir.graph.state import tied_by_state, variable_of

COPY_MARK = "/hsdag-copy@"
"""Separator in the name of a copy, between the op's name and its reader's."""


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model that can be compiled with any placement, and the ops of the original to which its nodes correspond.

    ``nodes`` [M] are the ops of ``model`` in topological order, with unique names. Node k corresponds to op
    ``op[k]`` of ``graph``: it is that op, a copy of it, or a constant with its value. It runs where op
    ``home[k]`` is placed: a constant or decompression where it is read, any other node where its own op is. Ops whose
    value is folded into another constant, or that nothing reads any more, have no node.
    """

    model: ov.Model
    graph: ComputationGraph
    nodes: tuple[ov.Node, ...]
    op: IntArray
    home: IntArray

    def place(self, devices: Sequence[str], specs: Iterable[DeviceSpec] = ()) -> ov.Model:
        """Return the model with an affinity on every node, replacing earlier ones; ``devices`` [N] are OpenVINO names.

        A model that keeps state is copied, and so is one for devices that have one thread according to ``specs``, as
        its gated layers are rewritten. Raises PlacementError where HETERO would lose the value of a variable.
        """
        for node, home in zip(self.nodes, self.home.tolist(), strict=True):
            node.get_rt_info()["affinity"] = devices[home]
        model = self.model
        if variable_of(self.graph) is not None and len(set(devices)) > 1:
            model = self._with_state_apart()
        single = {spec.openvino_name for spec in specs if has_one_thread(spec)}
        if not single.isdisjoint(devices):
            model = model.clone() if model is self.model else model
            nodes = model.get_ordered_ops()
            keep_gates_apart(node for node in nodes if node.get_rt_info()["affinity"].astype(str) in single)
        return model

    def _with_state_apart(self) -> ov.Model:
        """Return a copy in which every device computes the ops between inputs and layers for itself."""
        model = self.model.clone()
        pairs = list(zip(corresponding_nodes(self.model, model), self.op.tolist(), strict=True))
        facts = repeated_ops(self.graph), known_ops(self.graph)
        _repeat(model, *({node.get_name() for node, v in pairs if which[v]} for which in facts))
        _check_state(model)
        return model


def prepare(model: ov.Model, graph: ComputationGraph | None = None) -> PreparedModel:
    """Return a clone of a model that can be compiled with any placement; ``graph`` is the model's graph, if at hand.

    Every op that runs on data has instances of its own of the constants and decompressions that it reads.
    """
    graph = graph or graph_of(model)
    clone, _ = folded_clone(model, graph)
    _give_own_instances(clone, known_ops(graph))
    return _named(clone, graph)


def _give_own_instances(model: ov.Model, is_known: BoolArray) -> None:
    """Make every op that runs read copies that no other op reads; the first reader keeps the originals.

    In each round one clone serves all readers whose constants were copied equally often before.
    """
    num_readers: Counter[str] = Counter()
    rounds: defaultdict[int, list[ov.Input]] = defaultdict(list)
    for node in model.get_ordered_ops():
        if is_known[op_of_clone(node)]:
            continue
        ports = [port for port in node.inputs() if is_known[op_of_clone(port.get_source_output().get_node())]]
        behind = _ancestors([port.get_source_output().get_node() for port in ports])
        nth = max((num_readers[name] for name in behind), default=0)
        for name in behind:
            num_readers[name] = nth + 1
        rounds[nth].extend(ports)
    for nth in sorted(rounds)[1:]:
        copies = copied_constants([port.get_source_output() for port in rounds[nth]]).get_results()
        for port, copy in zip(rounds[nth], copies, strict=True):
            port.replace_source_output(copy.input_value(0))


def _ancestors(nodes: list[ov.Node]) -> set[str]:
    """Return the unique names (``get_name``) of nodes and of all that they depend on."""
    names: set[str] = set()
    while nodes:
        node = nodes.pop()
        if node.get_name() not in names:
            names.add(node.get_name())
            nodes.extend(value.get_node() for value in node.input_values())
    return names


def _named(model: ov.Model, graph: ComputationGraph) -> PreparedModel:
    """Return the finished clone, its nodes under unique names that begin with the name of their op."""
    nodes, is_known = model.get_ordered_ops(), known_ops(graph)
    op = np.asarray([op_of_clone(node) for node in nodes], dtype=np.int64)
    home = op.copy()
    reader: dict[str, int] = {}
    for k in reversed(range(len(nodes))):
        if is_known[op[k]]:
            home[k] = reader[nodes[k].get_name()]
        reader.update((value.get_node().get_name(), int(home[k])) for value in nodes[k].input_values())
    _keep_converts_with_producers(nodes, home)
    taken: Counter[str] = Counter()
    for k, node in enumerate(nodes):
        name = graph.op_names[op[k]]
        if is_known[op[k]] or node.get_type_name() != graph.op_types[op[k]]:
            name += f"{COPY_MARK}{graph.op_names[home[k]]}"
        taken[name] += 1
        node.set_friendly_name(name if taken[name] == 1 else f"{name}#{taken[name]}")
    return PreparedModel(model, graph, tuple(nodes), op, home)


def _keep_converts_with_producers(nodes: Sequence[ov.Node], home: IntArray) -> None:
    """Make a Convert of unknown size run where its input is computed, unless that is an input of the model.

    The CPU plugin (2026.4.1) gives zeros for a submodel of nothing but a Convert to the type it reads, when its input
    has shrunk since the last inference.
    """
    index = {node.get_name(): k for k, node in enumerate(nodes)}
    for k, node in enumerate(nodes):
        if node.get_type_name() in ("Convert", "ConvertLike") and node.get_output_partial_shape(0).is_dynamic:
            producer = node.input_value(0).get_node()
            if producer.get_type_name() != "Parameter":
                home[k] = home[index[producer.get_name()]]


def _repeat(model: ov.Model, repeated: set[str], known: set[str]) -> None:
    """Make the ops of every device read copies of their own of ``repeated`` nodes; nodes are given by ``get_name``."""
    read: defaultdict[str, list[ov.Input]] = defaultdict(list)
    frontier: list[ov.Input] = []
    for node in model.get_ordered_ops():
        is_repeated = node.get_name() in repeated
        for port in node.inputs():
            source = port.get_source_output().get_node().get_name()
            if source in repeated and not is_repeated:
                read[_affinity_of(node)].append(port)
            elif is_repeated and source not in repeated and source not in known:
                frontier.append(port)
    copies = {device: _device_copy(ports, frontier, device) for device, ports in read.items()}
    for device, ports in read.items():
        for port, value in zip(ports, copies[device], strict=True):
            port.replace_source_output(value)


def _device_copy(ports: Sequence[ov.Input], frontier: Sequence[ov.Input], device: str) -> list[ov.Output]:
    """Return copies for ``device`` of the values that ``ports`` read, computed from those that ``frontier`` reads."""
    sources = [port.get_source_output() for port in frontier]
    stand_ins = [opset13.parameter(source.get_partial_shape(), source.get_element_type()) for source in sources]
    for port, stand_in in zip(frontier, stand_ins, strict=True):
        port.replace_source_output(stand_in.output(0))
    copy = ov.Model([opset13.result(port.get_source_output()) for port in ports], stand_ins, "copy").clone()
    for port, source in zip(frontier, sources, strict=True):
        port.replace_source_output(source)
    for node in copy.get_ordered_ops():
        node.set_friendly_name(f"{node.get_friendly_name()}{COPY_MARK}{device}")
        node.get_rt_info()["affinity"] = device
    for parameter, source in zip(copy.get_parameters(), sources, strict=True):
        read_instead(parameter.output(0), source)
    return [result.input_value(0) for result in copy.get_results()]


def _affinity_of(node: ov.Node) -> str:
    return str(node.get_rt_info()["affinity"].astype(str))


def _check_state(model: ov.Model) -> None:
    """Raise PlacementError where HETERO parts ops of a placed model that share a variable."""
    from hsdag.ir.placement.submodels import SubmodelCollector  # imported late: most models keep no state

    graph = graph_of(model)
    names = [_affinity_of(node) for node in model.get_ordered_ops()]
    devices = np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)
    submodel = SubmodelCollector(graph, is_placed=True).submodel_of(devices)
    for u, v in tied_by_state(graph, known_ops(graph)):
        if graph.variables[v] and submodel[u] != submodel[v]:
            raise PlacementError(
                f"HETERO would lose what variable {graph.variables[v]!r} holds: where submodels wait for each other it "
                f"cuts them, here on {names[v]} between {graph.op_names[u]!r} and {graph.op_names[v]!r}; give every "
                "device ops that follow each other, or use the work-conserving executor"
            )
