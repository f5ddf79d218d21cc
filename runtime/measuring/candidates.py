"""Candidates in a measuring process: compiling them, and keeping them open by key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from hsdag.base.errors import DeviceError, ExecutionError, PlacementError, option
from hsdag.base.processes import Compiling
from hsdag.ir.device import DeviceIndex, DeviceSpec, hetero_properties
from hsdag.ir.placement.copies import compile_copies
from hsdag.runtime.machine.devices import device_calls, execution_devices, make_core
from hsdag.runtime.measuring.caches import CompiledModels
from hsdag.runtime.measuring.differences import op_by_op
from hsdag.runtime.measuring.inferences import CourseRunner
from hsdag.runtime.measuring.measured_model import MeasuredModel
from hsdag.runtime.measuring.messages import Candidate, Opened


class Compiler:
    """A compiler of candidates of one model for one set of devices.

    ``tell`` is called with a note at the begin and end of a compilation; ``compile_s`` are the seconds of the last one.
    """

    def __init__(self, measured: MeasuredModel, tell: Callable[[Compiling], None] = lambda _: None) -> None:
        self.measured = measured
        self.specs = measured.setup.devices
        self.compile_s = 0.0
        self.core = make_core(self.specs)
        self._models = CompiledModels(self.core, self.specs)
        self._tell = tell

    def core_of(self, specs: Sequence[DeviceSpec]) -> Any:
        """Return the core of this process if it has loaded these devices, else a new one."""
        return self.core if all(spec in self.specs for spec in specs) else make_core(tuple(specs))

    @contextmanager
    def compiling(self, target: str) -> Iterator[None]:
        """Tell the client that compilation begins and ends, and note its seconds."""
        self._tell(Compiling(target))
        begin_s = time.perf_counter()
        yield
        self.compile_s = time.perf_counter() - begin_s
        self._tell(Compiling(None))

    def compile(self, candidate: Candidate, limit_s: float | None) -> tuple[Any, int, tuple[str, ...]]:
        """Return the compiled model, its number of parts, and the devices that it runs on.

        Raises PlacementError for what an executor would get wrong, DeviceError or ExecutionError for a device that
        does not compile it.
        """
        names, properties = candidate.target.rpartition(":")[2].split(","), candidate.properties
        used = DeviceIndex.of(spec for name in names for spec in self.specs if spec.openvino_name == name)
        model = self.measured.model
        if candidate.copies:
            by_name = dict(zip(used.openvino_names, used.specs, strict=True))
            copies = [
                (by_name[copy] if isinstance(copy, str) else self.compile(copy, limit_s)[0], requests)
                for copy, requests in candidate.copies
            ]
            with self.compiling(candidate.target):
                return compile_copies(self.core, model, copies, properties), len(copies), tuple(names)
        if candidate.executor == "work-conserving":
            return self._compile_in_parts(candidate, used, limit_s)
        if candidate.devices is not None:
            model = self.measured.prepared.place(list(candidate.devices), self.specs)
        if candidate.target.startswith("HETERO:"):
            properties = hetero_properties(self.specs, properties)
        properties = {**self._models.properties(candidate.target), **properties}
        with self.compiling(candidate.target), device_calls():
            compiled = self.core.compile_model(model, candidate.target, properties)
        has_number = "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES")
        num_parts = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) if has_number else 1
        return compiled, num_parts, execution_devices(compiled, used.specs)

    def _compile_in_parts(
        self, candidate: Candidate, used: DeviceIndex, limit_s: float | None
    ) -> tuple[Any, int, tuple[str, ...]]:
        """Compile for the work-conserving executor. Raises ModelError, too, for models that no placement suits."""
        from hsdag.base.kernels import compiling_at_most  # imported late: they load numba
        from hsdag.ir.shards.rewrite import shard
        from hsdag.runtime.executor.compiling import compile_on

        model, graph = self.measured.model, self.measured.graph
        devices: Sequence[int] = used.openvino_positions(candidate.devices or ())
        if candidate.regions:
            sharded = shard(model, graph, candidate.regions, devices, used.openvino_names)
            model, graph, devices = sharded.model, sharded.graph, sharded.devices
        with self.compiling(candidate.target), compiling_at_most(self.measured.setup.kernels_s):
            compiled = compile_on(
                self.core,
                model,
                graph,
                used.specs,
                devices,
                candidate.priority,
                candidate.properties,
                by_load=candidate.by_load,
                limit_s=limit_s,
            )
        names = used.openvino_named(np.unique(compiled.cut.device).tolist())
        return compiled, len(compiled.cut.subgraphs), tuple(names)


class OpenCandidates:
    """Candidates that are open, by key.

    Attributes:
        compiled: Their compiled models.
        requests: A runner of each one's inferences.
        references: Outputs of those that only compute them once, op by op.
        firsts: Outputs right after compiling, if the model draws random numbers.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._measured = compiler.measured
        self.compiled: dict[str, Any] = {}
        self.requests: dict[str, CourseRunner] = {}
        self.references: dict[str, list[NDArray[Any]]] = {}
        self.firsts: dict[str, list[NDArray[Any]]] = {}

    def open(self, key: str, candidate: Candidate, inference_limit_s: float | None = None) -> Opened:
        """Compile a candidate under a key, and check that an inference of it succeeds.

        The work-conserving executor gives up an inference after a limit. Raises ExecutionError when one fails.
        """
        self.close(key)
        core, specs, measured = self._compiler.core, self._compiler.specs, self._measured
        before = memory_use(core, specs)
        begin_s = time.perf_counter()
        if candidate.target == "op-by-op":
            limit_s = inference_limit_s or math.inf
            with device_calls():
                references = (op_by_op(core, measured.model, course.inferences, limit_s) for course in measured.courses)
                self.references[key] = self.firsts[key] = [array for outputs in references for array in outputs]
            return Opened(time.perf_counter() - begin_s, 0, ())
        try:
            self.compiled[key], num_parts, devices = self._compiler.compile(candidate, inference_limit_s)
            with device_calls():
                self.requests[key] = measured.runner(self.compiled[key])
            first = self.outputs(key)
            if any(measured.drawn):
                self.firsts[key] = first
        except (DeviceError, PlacementError, ExecutionError) as error:
            self.close(key)
            raise ExecutionError(str(error)) from error
        pairs = zip(memory_use(core, specs), before, strict=True)
        resident_bytes, device_bytes = (None if now is None or old is None else max(now - old, 0) for now, old in pairs)
        first_s, compile_s = self.requests[key].first_s, self._compiler.compile_s
        requests = tuple(copy.num_requests for copy in getattr(self.compiled[key], "copies", ()))
        return Opened(compile_s, num_parts, devices, first_s, resident_bytes or 0, device_bytes, requests)

    def close(self, key: str) -> None:
        """Close a candidate, if there is one."""
        self.references.pop(key, None)
        self.firsts.pop(key, None)
        self.requests.pop(key, None)
        getattr(self.compiled.pop(key, None), "close", bool)()  # executors have threads of their own

    def outputs(self, key: str) -> list[NDArray[Any]]:
        """Return the outputs of a candidate in all inferences, in the order of the model's outputs.

        Raises ExecutionError when an inference fails.
        """
        if key in self.references:
            return self.references[key]
        try:
            with device_calls():
                return self.requests[key].outputs(len(self._measured.model.outputs))
        except ExecutionError as error:
            is_random = self._measured.setup.inputs is None
            hint = f"; the inputs are random: {option('inputs')} FILE.npz gives the model real ones" * is_random
            raise ExecutionError(f"the inference failed: {error}{hint}") from error


def memory_use(core: Any, specs: Sequence[DeviceSpec]) -> tuple[int, int | None]:
    """Return the bytes that this process has in the machine's memory, and in that of GPUs: None if none reports it.

    A GPU among ``specs`` counts once under all its names.
    """
    by_device: dict[str, int] = {}
    for spec in specs:
        with suppress(RuntimeError):  # other plugins have no such property
            kinds = core.get_property(spec.openvino_name, "GPU_MEMORY_STATISTICS")
            by_device[spec.plugin] = sum(size for kind, size in kinds.items() if kind != "usm_host")
    return int(psutil.Process().memory_info().rss), sum(by_device.values()) if by_device else None
