"""``hsdag devices``: the OpenVINO and CUDA devices of this machine, and how the CPU can be divided."""

from __future__ import annotations

from dataclasses import asdict

import typer

from hsdag.cli.options import Json
from hsdag.cli.output import print_json, print_table


def devices(as_json: Json = False) -> None:
    """List the devices of this machine, and how the CPU can be divided."""
    from hsdag.runtime.platforms.devices import cpu_topology, list_cuda, list_devices

    infos, topology, cuda = list_devices(), cpu_topology(), list_cuda()
    if as_json:
        document = {
            "openvino": [asdict(info) for info in infos],
            "cuda": [{"name": g.name, "full_name": g.full_name, "memory_bytes": g.memory_bytes} for g in cuda],
            "cpu": {
                "performance_threads": topology.performance,
                "efficiency_threads": topology.efficiency,
                "max_partitions": topology.threads if topology.threads > 1 else 0,
            },
        }
        print_json(document)
        return
    rows = [[i.name, i.full_name or f"does not load: {i.failure}", " ".join(i.capabilities)] for i in infos]
    rows += [[g.name, f"{g.full_name}, {g.memory_bytes / 2**30:.0f} GiB", "CUDA"] for g in cuda]
    print_table(None, ["device", "what it is", "capabilities"], rows)
    if topology.threads > 1:
        kinds = f" ({topology.performance} on performance, {topology.efficiency} on efficiency cores)"
        of = kinds if topology.efficiency else ""
        typer.echo(f"The CPU's {topology.threads} threads{of} can be divided: --partition-cpu 2..{topology.threads}.")
