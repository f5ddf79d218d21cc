"""Asked: what a profile is to be made of. Legend: N ops, D devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import IntArray
from hsdag.runtime.measuring.candidate import Candidate


@dataclass(frozen=True, eq=False)
class Asked:
    """What is to be profiled: ``carriers`` [N, D] is the device that runs op v meanwhile, ``stages`` [N] its stage."""

    devices: tuple[DeviceSpec, ...]
    carriers: IntArray
    stages: IntArray | None

    def own(self, d: int) -> NDArray[np.bool_]:
        """[N] the ops that a device runs itself."""
        return np.asarray(self.carriers[:, d] == d)

    def on(self, d: int, stage: int | None = None) -> list[str]:
        """[N] OpenVINO's names of what runs the ops: device d where it can, or on one stage alone, those that follow it
        on the stages that follow."""
        of_ops = self.carriers[:, d]
        if stage is not None and self.stages is not None:
            of_ops = self.carriers[np.arange(len(of_ops)), (d + self.stages - stage) % len(self.devices)]
        return [self.devices[c].openvino_name for c in of_ops.tolist()]

    @cached_property
    def reference(self) -> Candidate | None:
        """What machines are compared by: the model on the first device that runs all of it."""
        return next((Candidate.on_device(spec) for d, spec in enumerate(self.devices) if self.own(d).all()), None)
