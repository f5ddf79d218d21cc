"""Profiling: measuring a model's ops on every device, transfers between devices, and devices side by side.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hsdag.base.processes import CandidateFailed
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.runtime.measuring.device_profiler import DeviceProfiler
from hsdag.runtime.measuring.effort import ProfilingRun
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import ask
from hsdag.runtime.measuring.pair_profiler import PROBE_LIMIT_S, PairProfiler, alone_of
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.windows import settle


class Profiler:
    """A profiler that measures one model in a worker, device by device, and caches the results.

    ``has_one_course`` says whether the model has no scenarios, so that devices side by side run the same inference as
    in their profiles.
    """

    def __init__(self, run: ProfilingRun, *, has_one_course: bool = True) -> None:
        self._run = run
        self._has_one_course = has_one_course
        self.devices = DeviceProfiler(run)
        self.pairs = PairProfiler(run)

    def profile(
        self,
        devices: Sequence[DeviceSpec],
        carriers: IntArray,
        *,
        side_by_side: bool = False,
        whole_devices: Sequence[DeviceSpec] = (),
    ) -> ModelProfile:
        """Measure times on all devices and links between them; with ``side_by_side`` also mutual slow-downs.

        ``carriers`` [N, D] is the device that runs op v while device d is profiled: d itself where it can.
        ``whole_devices`` consist of all of these; slow-downs must agree with their speed. Raises DeviceError when a
        device cannot be profiled.
        """
        times = tuple(self.devices.profile(devices, carriers[:, d], d) for d in range(len(devices)))
        with_syncs = side_by_side and not any(spec.plugin.islower() for spec in devices)  # torch copies by streams
        links, syncs = self.pairs.links(devices), self.pairs.syncs(devices) if with_syncs else None
        beside = self.pairs.beside(devices, times, whole_devices) if side_by_side and len(devices) > 1 else None
        all_series = [series for series in (links, syncs, beside) if series is not None]
        run = self._run
        run.step("profiling transfers" + " and devices side by side" * bool(beside))
        settle(all_series, run.effort.most_windows, lambda: run.left_s < 0, run.on_note)
        with suppress(CandidateFailed):
            run.client.call(ask(Measurer.forget_probes), PROBE_LIMIT_S)
        results = [series.result() for series in all_series]
        if beside is not None and self._has_one_course:
            times = tuple(map(self.devices.corrected, times, alone_of(beside, len(devices)).tolist()))
        link_profile = self.pairs.link_profile(results[0], None if syncs is None else results[1], len(devices))
        contention = None if beside is None else self.pairs.contention(devices, beside, results[-1])
        return ModelProfile(devices=times, links=link_profile, contention=contention)
