"""ModelProfile: measured times of a model's ops on every device, and of tensors between devices.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import FloatArray
from hsdag.runtime.problems.cost_model import CostModel, CostSource
from hsdag.runtime.profiling.contention import Contention

MOST_LAUNCH_SHARE = 0.9
"""Of a model's latency at most this much is taken for its launch: small models are little else."""


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """What one device takes for a model.

    ``time_s`` is NaN for ops the device does not run. All ops that one primitive computes share its figure: it
    stands at the one with the most FLOPs, the others are 0, and ``fused`` lists them together. The sum over all ops
    is ``latency_s``, the measured latency of the whole model, which is None where the device does not run all of
    it. ``spread`` is the interquartile range of that latency over its median, over ``runs``.
    ``resident_bytes`` is what compiling the model and its first inference added to the process, ``device_bytes`` what
    it added to the memory of GPUs (None where no device tells), ``memory_bytes`` what the device has. ``compile_s`` is
    how long compiling took, ``first_s`` the first inference, 0 where that is not known. ``box`` is the machine that
    measured, where it was another one; all that is seconds is scaled to this one then.
    """

    time_s: FloatArray  # [N]
    fused: tuple[tuple[int, ...], ...]
    latency_s: float | None
    spread: float
    runs: int
    resident_bytes: int
    memory_bytes: float | None
    compile_s: float = 0.0
    first_s: float = 0.0
    device_bytes: int | None = None
    box: str | None = None


@dataclass(frozen=True, eq=False)
class LinkProfile:
    """What it takes to go from a submodel on one device to one on another.

    ``launch_s`` is paid once per submodel, latency and bytes over bandwidth once per tensor; conversions that the
    plugins make at the boundary are in it. The diagonals, from one submodel to another on the same device, are
    means over the device's links, since HETERO cannot be made to part ops of one device.

    ``ordinary`` and ``shared`` are ``[launch_s, latency_s, s_per_byte]`` of the work-conserving executor, where a GPU
    takes part: through the tensor of the request that wrote it, and through memory that spares copies. They are NaN for
    all other pairs, and where there is no such way.
    """

    launch_s: FloatArray  # [D]
    latency_s: FloatArray  # [D, D]
    bandwidth_bytes_per_s: FloatArray  # [D, D]
    ordinary: FloatArray | None = None  # [3, D, D]
    shared: FloatArray | None = None  # [3, D, D]

    def side_by_side(self) -> LinkProfile:
        """The links of the work-conserving executor: as it hands tensors on where that is known, else HETERO's."""
        if self.ordinary is None or self.shared is None:
            return self
        launch_s, latency_s, s_per_byte = np.where(np.isnan(self.shared), self.ordinary, self.shared)
        known = ~np.isnan(latency_s)
        counts = known.sum(axis=0)
        own_launch_s = np.divide(np.nansum(launch_s, axis=0), counts, out=self.launch_s.copy(), where=counts > 0)
        bandwidth = 1.0 / np.maximum(s_per_byte, 1e-12)
        return LinkProfile(
            own_launch_s,
            np.where(known, latency_s, self.latency_s),
            np.where(known, bandwidth, self.bandwidth_bytes_per_s),
        )


@dataclass(frozen=True, eq=False)
class ModelProfile:
    """All that was measured of one model on some devices; ``contention`` is None where it was not asked for."""

    devices: tuple[DeviceSpec, ...]
    times: tuple[DeviceProfile, ...]
    links: LinkProfile
    contention: Contention | None = None

    @property
    def fused(self) -> tuple[tuple[int, ...], ...]:
        """Sets of ops that some device computes as one."""
        return tuple(ops for profile in self.times for ops in profile.fused)

    @property
    def memory_bytes(self) -> FloatArray:
        """[D] infinite where it is not known; devices over the CPU plugin share the machine's memory out."""
        num_sharing = sum(spec.plugin == "CPU" for spec in self.devices)
        known = [np.inf if p.memory_bytes is None else p.memory_bytes for p in self.times]
        return np.array([b / num_sharing if s.plugin == "CPU" else b for s, b in zip(self.devices, known, strict=True)])

    def costs(self, *, side_by_side: bool = False) -> CostModel:
        """The profile as a cost model by op; the one launch in a model's latency is taken out of its ops.

        Links are HETERO's, or ``side_by_side`` those of the work-conserving executor. Pairs of devices that were not
        measured side by side are taken not to slow each other down.
        """
        links = self.links.side_by_side() if side_by_side else self.links
        total_s = np.array([np.nansum(profile.time_s) for profile in self.times])
        share = np.divide(self.links.launch_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
        return CostModel(
            time_s=np.stack([p.time_s for p in self.times], axis=1) * (1.0 - np.minimum(share, MOST_LAUNCH_SHARE)),
            launch_s=links.launch_s,
            link_latency_s=links.latency_s,
            link_bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
            source=CostSource.MEASURED,
            slowdown=None if self.contention is None else np.nan_to_num(self.contention.slowdown, nan=1.0),
        )

    def op_by_op_costs(self) -> CostModel:
        """The same for an executor that starts every op by itself.

        A model on one device has no launch beside its ops then. What a probe takes for all of its tensors together, the
        way from one device's work to the other's, is taken by every crossing.
        """
        costs = self.costs()
        return replace(
            costs,
            time_s=np.stack([profile.time_s for profile in self.times], axis=1),
            launch_s=np.zeros_like(costs.launch_s),
            link_latency_s=costs.link_latency_s + costs.launch_s[None, :],
        )
