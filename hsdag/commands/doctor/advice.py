"""What to run next: commands that fit a machine and what was found on it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hsdag.commands.doctor.model import ModelReport
from hsdag.ir.device import ADDED_DEFAULTS, DeviceSpec
from hsdag.ir.reader import Shapes
from hsdag.ir.scenario import Scenario


def next_commands(
    model: Path | None,
    report: ModelReport | None,
    devices: Sequence[DeviceSpec],
    parts: int | None,
    threads: int,
    shapes: Sequence[str],
) -> tuple[str, ...]:
    """Commands for devices, the most useful first; ``shapes`` are options that were given.

    The CPU was divided into ``parts``; where it is the only device, its ``threads`` can be.
    """
    file = "MODEL" if model is None else str(model)
    if parts is None and threads > 1 and [spec.name for spec in devices] == ["CPU"]:
        parts = 2
    in_f32 = report.overflowing if report is not None else ()
    made = [f"CPU_{part}" for part in range(parts or 0)] + ["CPU"] * (parts is not None)
    rest = [_listed(spec, in_f32=spec.name in in_f32) for spec in devices if spec.name not in made]
    where = ["--devices", ",".join(rest)] if rest else []
    where += [] if parts is None else ["--partition-cpu", str(parts)]
    open_inputs = report.open_inputs if report is not None else ()
    still = ["--data-shape", ",".join(f"{name}[...]" for name in open_inputs)] if open_inputs else []
    commands = [["hsdag", "place", file, *where, *shapes, *still]]
    if model is None:
        commands.insert(0, ["hsdag", "doctor", file, *where])
    return tuple(shlex.join(command) for command in commands) if devices else ()


def shape_options(shapes: Shapes, scenarios: Sequence[Scenario]) -> list[str]:
    """Shapes and scenarios as the options that gave them."""
    fixed = ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())
    options = ["--shape", fixed] if shapes else []
    tokens = [scenario.tokens for scenario in scenarios if scenario.tokens is not None]
    if tokens:
        return [*options, "--tokens", ",".join(tokens)]
    return [*options, *(part for scenario in scenarios for part in ("--data-shape", scenario.text))]


def _listed(spec: DeviceSpec, *, in_f32: bool) -> str:
    """A device as ``--devices`` takes it."""
    implied = ADDED_DEFAULTS.get(spec.plugin, {}).items()
    properties = dict(spec.properties.items() - implied) | ({"INFERENCE_PRECISION_HINT": "f32"} if in_f32 else {})
    listed = ";".join(f"{key}={value}" for key, value in sorted(properties.items()))
    own = f"{spec.name}={spec.plugin}" if spec.is_added else spec.name
    return f"{own}[{listed}]" if listed else own
