"""``hsdag bisect``: the first op at which two devices compute something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hsdag.cli.options import Inputs, Json, Model, Shape
from hsdag.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.diagnosis.bisect import Bisection


def bisect(
    model: Model,
    devices: Annotated[
        str, Option("--devices", "-d", help="The two devices: CPU,GPU.0 or A=CPU[KEY=VALUE;...],B=CPU[...].")
    ],
    max_difference: Annotated[
        float | None,
        Option("--max-difference", help="What is allowed, relative to a tensor's largest number. Default: as place."),
    ] = None,
    inputs: Inputs = None,
    shape: Shape = None,
    seed: Annotated[int, Option("--seed", help="Seed of random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the first op of a model at which two devices part ways, by running it up to ever fewer ops."""
    from hsdag.diagnosis.bisect import bisect as run_bisect
    from hsdag.ir.device import parse_devices
    from hsdag.ir.graph.reader import input_shapes
    from hsdag.runtime.machine.devices import canonical

    specs = tuple(canonical(spec) for spec in parse_devices(devices))
    given = {"max_difference": max_difference, "inputs": inputs, "seed": seed}
    found = run_bisect(model, specs, shapes=input_shapes(shape), on_step=say, **given)  # type: ignore[arg-type]
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)


def _show(found: Bisection) -> None:
    rows = []
    for probe in found.probes:
        apart = "-" if probe.difference is None else f"{probe.difference:.3g}"
        verdict = "did not run" if probe.failure is not None else "differs" if probe.differs else "agrees"
        rows.append([probe.op, probe.op_type, apart, verdict])
    if rows:
        print_table(None, ["up to op", "type", "relative difference", ""], rows)
    for sentence in found.sentences:
        typer.echo(sentence)
