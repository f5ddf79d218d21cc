"""ModelProfile: measured times of a model's ops on every device, and of tensors between devices.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    how long compiling took, ``first_s`` the first inference, 0 where that is not known.
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


@dataclass(frozen=True, eq=False)
class LinkProfile:
    """What it takes to go from a submodel on one device to one on another.

    ``launch_s`` is paid once per submodel, latency and bytes over bandwidth once per tensor; conversions that the
    plugins make at the boundary are in it. The diagonals, from one submodel to another on the same device, are
    means over the device's links, since HETERO cannot be made to part ops of one device.
    """

    launch_s: FloatArray  # [D]
    latency_s: FloatArray  # [D, D]
    bandwidth_bytes_per_s: FloatArray  # [D, D]


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

    def costs(self) -> CostModel:
        """The profile as a cost model by op; the one launch in a model's latency is taken out of its ops.

        Pairs of devices that were not measured side by side are taken not to slow each other down.
        """
        total_s = np.array([np.nansum(profile.time_s) for profile in self.times])
        share = np.divide(self.links.launch_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
        return CostModel(
            time_s=np.stack([p.time_s for p in self.times], axis=1) * (1.0 - np.minimum(share, MOST_LAUNCH_SHARE)),
            launch_s=self.links.launch_s,
            link_latency_s=self.links.latency_s,
            link_bandwidth_bytes_per_s=self.links.bandwidth_bytes_per_s,
            source=CostSource.MEASURED,
            slowdown=None if self.contention is None else np.nan_to_num(self.contention.slowdown, nan=1.0),
        )
