"""What to run next: commands that fit a machine and what was found on it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hsdag.commands.doctor.model import ModelReport
from hsdag.ir.device import ADDED_DEFAULTS, DeviceSpec


def next_commands(
    model: Path | None,
    report: ModelReport | None,
    devices: Sequence[DeviceSpec],
    parts: int | None,
    threads: int,
) -> tuple[str, ...]:
    """Commands for devices, the most useful first.

    The CPU was divided into ``parts``; where it is the only device, its ``threads`` can be.
    """
    file = "MODEL" if model is None else str(model)
    if parts is None and threads > 1 and [spec.name for spec in devices] == ["CPU"]:
        parts = 2
    in_f32 = report.overflowing if report is not None else ()
    rest = [_listed(spec, in_f32=spec.name in in_f32) for spec in devices if parts is None or spec.plugin != "CPU"]
    where = ["--devices", ",".join(rest)] if rest else []
    where += [] if parts is None else ["--partition-cpu", str(parts)]
    open_inputs = report.open_inputs if report is not None else ()
    shape = ["--data-shape", ",".join(f"{name}[...]" for name in open_inputs)] if open_inputs else []
    commands = [["hsdag", "place", file, *where, *shape]]
    if model is None:
        commands.insert(0, ["hsdag", "doctor", file, *where])
    return tuple(shlex.join(command) for command in commands) if devices else ()


def _listed(spec: DeviceSpec, *, in_f32: bool) -> str:
    """A device as ``--devices`` takes it."""
    implied = ADDED_DEFAULTS.get(spec.plugin, {}).items()
    properties = dict(spec.properties.items() - implied) | ({"INFERENCE_PRECISION_HINT": "f32"} if in_f32 else {})
    listed = ";".join(f"{key}={value}" for key, value in sorted(properties.items()))
    own = f"{spec.name}={spec.plugin}" if spec.is_added else spec.name
    return f"{own}[{listed}]" if listed else own
