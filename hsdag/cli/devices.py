"""``hsdag devices``: the OpenVINO and CUDA devices of this machine, and how the CPU can be divided."""

from __future__ import annotations

import typer

from hsdag.cli.options import Json
from hsdag.cli.output import print_json, print_table


def devices(as_json: Json = False) -> None:
    """List the devices of this machine, and how the CPU can be divided."""
    from hsdag.diagnosis.inspect import present_devices

    found = present_devices()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    rows = [[i.name, i.full_name or f"does not load: {i.failure}", " ".join(i.capabilities)] for i in found.openvino]
    rows += [[g.name, f"{g.full_name}, {g.memory_bytes / 2**30:.0f} GiB", "CUDA"] for g in found.cuda]
    print_table(None, ["device", "what it is", "capabilities"], rows)
    cpu, threads = found.cpu, found.cpu.max_partitions
    if threads:
        kinds = f" ({cpu.performance_threads} on performance, {cpu.efficiency_threads} on efficiency cores)"
        of = kinds if cpu.efficiency_threads else ""
        typer.echo(f"The CPU's {threads} threads{of} can be divided: --partition-cpu 2..{threads}.")
