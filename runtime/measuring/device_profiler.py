"""Profiles of devices: the times of a model's ops on each of them.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hsdag.base.errors import DeviceError, option
from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.gates import has_one_thread
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.measuring.effort import ProfilingRun
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import Candidate, ask
from hsdag.runtime.measuring.profile import DeviceProfile
from hsdag.runtime.measuring.runner import with_hint
from hsdag.runtime.measuring.windows import DOUBT

AGAIN = 8
"""Compile a model again without performance counters if compiling takes at most 1 / AGAIN of the time."""

FIGURES = ("spread", "runs", "resident_bytes", "memory_bytes", "compile_s", "first_s", "device_bytes")
"""Figures of a device and a model that are taken from the worker's answer; torch devices lack the last two."""


class DeviceProfiler:
    """A profiler of devices one by one, which takes the profile of a device from the cache, or from one like it."""

    def __init__(self, run: ProfilingRun) -> None:
        self._run = run
        self._longest_s = 0.0
        self._measured: dict[str, str] = {}  # the first device of each kind, by the key of its profile
        self._whole: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by plugin, a device that runs the whole model
        self._entries: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}  # by device, key and cached entry
        self._index = {name: v for v, name in enumerate(run.graph.canonical_names)}

    def profile(self, devices: Sequence[DeviceSpec], carrier: IntArray, d: int) -> DeviceProfile:
        """Return a device's profile from the cache, or measure it; ``carrier`` [N] runs each op meanwhile."""
        spec = devices[d]
        begin_s = self._run.clock()
        is_here = np.asarray(carrier == d)
        on = DeviceIndex.of(devices).openvino_named(carrier.tolist())
        # all that times depend on, except the machine: the cache is this machine's own
        key: dict[str, Any] = {"what": "ops", "model": self._run.digest, "device": identity(spec)}
        if not is_here.all():
            key["carriers"] = [identity(devices[c]) for c in np.unique(carrier).tolist()]
        stored: Mapping[str, Any] | None = self._run.cache.get(key, self._run.effort.limit_s)
        alike = self._measured.setdefault(repr(key), spec.name)
        if stored is not None and alike != spec.name:
            self._run.on_step(f"{spec.name} is like {alike}, so its profile is the same")
        elif stored is not None:
            self._run.on_step(f"{spec.name} was profiled in an earlier run; {option('fresh')} measures it again")
        elif self._longest_s > self._run.left_s:
            takes = f"profiling {spec.name} takes about {self._longest_s:.0f} s"
            reason = f"{takes}, and only {max(self._run.left_s, 0.0):.0f} s are left for profiling"
            if not is_here.all() or spec.plugin not in self._whole:
                raise DeviceError(reason)
            name, stored = self._whole[spec.plugin]
            self._run.on_step(f"{reason}; its ops are taken to run as on {name}")
        else:
            self._run.step(f"profiling {spec.name}")
            stored = self._measure(spec, on)
            self._longest_s = max(self._longest_s, self._run.clock() - begin_s)
            self._run.cache.put(key, stored, self._run.effort.limit_s)
        self._entries[spec.name] = key, stored
        if is_here.all():
            self._whole.setdefault(spec.plugin, (spec.name, stored))
        return self._spread(spec, stored, is_here)

    def corrected(self, times: DeviceProfile, alone_s: float) -> DeviceProfile:
        """Return a profile with the latency measured in windows, if that contradicts the profile's.

        The profile of a device is one stretch of time, in which the machine may have given less than otherwise.
        """
        taken_s = times.latency_s
        if taken_s is None or not (DOUBT * alone_s < taken_s or DOUBT * taken_s < alone_s):
            return times
        if (entry := self._entries.get(times.device.name)) is not None:
            self._run.cache.put(entry[0], {**entry[1], "latency_s": alone_s}, self._run.effort.limit_s)
        return replace(times, time_s=times.time_s * (alone_s / taken_s), latency_s=alone_s)

    def _measure(self, spec: DeviceSpec, on: list[str]) -> dict[str, Any]:
        """Return the worker's answer with ops by name: another file of the same model may number them differently."""
        names = self._run.graph.canonical_names
        effort = self._run.effort
        measured = effort.runs, effort.limit_s, effort.total_s / AGAIN
        candidate = Candidate.placed(on)
        if has_one_thread(spec):  # as in placements; unchanged, the whole model may end the process
            candidate = replace(candidate, devices=tuple(on))
        request = ask(Measurer.op_times, candidate, spec.openvino_name, *measured)
        try:
            answer = self._run.client.call(request, effort.call_limit_s, COMPILING_LIMIT_S)
        except CandidateFailed as failure:
            raise DeviceError(f"device {spec.name!r} cannot be profiled: {with_hint(failure, spec)}") from failure
        return {**answer, "primitives": [[[names[v] for v in ops], s] for ops, s, *_ in answer["primitives"]]}

    def _spread(self, spec: DeviceSpec, stored: Mapping[str, Any], is_here: np.ndarray) -> DeviceProfile:
        """Spread the figures of primitives over ops: each to its heaviest op, those without ops in proportion.

        ``is_here`` [N] are the ops that the device runs.
        """
        graph = self._run.graph
        time_s = np.zeros(len(is_here))
        floating = floating_ops(graph)
        fused = []
        named = [[self._index[name] for name in op_names] for op_names, _ in stored["primitives"]]
        inside = {v for ops in named for v in ops} | set(np.flatnonzero(floating | ~is_here).tolist())
        for ops, (_, seconds) in zip(named, stored["primitives"], strict=True):
            self._add_unnamed(ops, inside)
            if ops:
                time_s[max(ops, key=lambda v: (graph.flops[v], -graph.position[v]))] += seconds
            together = tuple(v for v in ops if not floating[v])
            if len(together) > 1:
                fused.append(together)
        total_s = float(time_s.sum())
        if total_s > 0:
            time_s *= float(stored["latency_s"]) / total_s
        elif is_here.any():  # counters stand still for ops below their resolution
            computing = is_here & ~floating
            candidates = np.flatnonzero(computing if computing.any() else is_here)
            time_s[max(candidates.tolist(), key=lambda v: graph.flops[v])] = float(stored["latency_s"])
        time_s[~is_here] = np.nan
        figures = {name: stored[name] for name in FIGURES if name in stored}
        latency_s = float(stored["latency_s"]) if is_here.all() else None
        return DeviceProfile(time_s, tuple(fused), latency_s, device=spec, **figures)

    def _add_unnamed(self, ops: list[int], inside: set[int]) -> None:
        """Add to a primitive's ops computing ops before them that no primitive names and nothing else reads.

        A plugin that computes a product together with the sum after it may name the sum alone.
        """
        graph = self._run.graph
        for v in ops:  # the list grows meanwhile
            for u in graph.predecessors.of(v).tolist():
                if u not in inside and graph.flops[u] > 0 and set(graph.successors.of(u).tolist()) <= {v}:
                    ops.append(u)
                    inside.add(u)
