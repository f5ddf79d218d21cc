"""Sources: what the worker of the CUDA engine runs, with its inputs and what its outputs are compared with.

Legend: N nodes, R results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from numpy.typing import NDArray

from hsdag.evaluators.torch.workload_graph import problem_graph, random_inputs
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph import Csr
from hsdag.models.workload_numpy import values_of
from hsdag.runtime.measuring.candidate import Open
from hsdag.runtime.measuring.inferences import InputArrays
from hsdag.runtime.measuring.messages import Close, WorkerSetup
from hsdag.runtime.problems.problem_file import read_problem
from hsdag.runtime.torch_backend import Inputs, TorchGraph

Arrays = list[NDArray[Any]]


class Source(ABC):
    """A graph, its inputs by name, and reference outputs."""

    graph: TorchGraph
    inputs: Inputs

    @abstractmethod
    def reference(self, request: Open) -> Arrays:
        """Outputs [R] as the candidate of a request computes them, which is no placement on torch devices."""


def source_of(setup: WorkerSetup) -> Source:
    """The source in a file: a problem whose ops have expressions (.json), or else a model."""
    return WorkloadSource(setup) if setup.model.suffix == ".json" else ModelSource(setup)


@final
class ModelSource(Source):
    """An OpenVINO model; references are OpenVINO's.

    Raises UnsupportedOpError for an op that the torch op library does not run, and as reading models and inputs does.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        from hsdag.ir.reader import input_name
        from hsdag.runtime.measuring.worker import Worker
        from hsdag.runtime.platforms.inference import array_of
        from hsdag.runtime.torch_backend.openvino_graph import openvino_graph

        self._worker = Worker(replace(setup, devices=()))
        model = self._worker.model
        self.graph = openvino_graph(model)
        named = zip(model.inputs, self._worker.courses[0].inferences[0], strict=True)
        self.inputs = {input_name(port): array_of(tensor) for port, tensor in named}

    def reference(self, request: Open) -> Arrays:
        """What OpenVINO computes: the whole model compiled for the CPU, or op by op; or ONNX Runtime."""
        self._worker.open(request)
        found = self._worker.outputs(request.key)
        self._worker.close(Close(request.key))
        return found


@final
class WorkloadSource(Source):
    """A problem file whose ops have expressions; the reference is NumPy in double precision.

    Raises ModelError for an op without an expression, HsdagError for a file of inputs that lacks one.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._problem = read_problem(setup.model)
        self.graph = problem_graph(self._problem)
        self.inputs = random_inputs(self.graph, setup.seed)
        if setup.inputs is not None:
            self.inputs = _read(setup.inputs, self.graph, self.inputs)

    def reference(self, request: Open) -> Arrays:  # noqa: ARG002 - there is one alone
        """What the expressions give."""
        problem = self._problem
        before = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
        sources = [before.of(v).tolist() for v in range(problem.num_ops)]
        wide = {name: _widened(torch.as_tensor(x)) for name, x in self.inputs.items()}
        wanted = [v for v, _ in self.graph.outputs.values()]
        order = problem.topological_order.tolist()
        values = values_of(problem.labels.expressions, sources, order, wide, set(wanted))
        return [values[v] for v in wanted]


def _read(path: Path, graph: TorchGraph, like: Inputs) -> Inputs:
    """The arrays of a file, of the shapes of others."""
    arrays = InputArrays(path)
    lacking = [name for name in graph.inputs if name not in arrays.names]
    if lacking:
        raise HsdagError(f"{path} needs an array {lacking[0]!r}; the inputs are {', '.join(graph.inputs)}")
    types = {node.feed.tensor: node.feed.dtype for node in graph.nodes if node.feed is not None}
    return {name: torch.as_tensor(arrays.read(name, tuple(like[name].shape))).to(types[name]) for name in graph.inputs}


def _widened(x: torch.Tensor) -> NDArray[Any]:
    return x.to(torch.complex128 if x.is_complex() else torch.float64).numpy()
