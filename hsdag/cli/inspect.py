"""``hsdag inspect``: a model's graph in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag.cli.options import DataShapes, Devices, Json, Model, Shape, Tokens
from hsdag.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hsdag.ir.scenario import Scenario

ASK_DEVICES_UP_TO = 20_000
"""Ops up to which devices are queried without --devices: OpenVINO takes a minute for a model of 100,000."""


def inspect(
    model: Model,
    shape: Shape = None,
    data_shapes: DataShapes = None,
    tokens: Tokens = None,
    devices: Devices = None,
    as_json: Json = False,
) -> None:
    """Print a model's graph statistics: nodes, edges, op types, sizes after coarsening, unsupported ops."""
    from hsdag.ir import read_graph
    from hsdag.ir.sizing import read_sized
    from hsdag.search.options import input_scenarios, input_shapes

    shapes, scenarios = input_shapes(shape), input_scenarios(data_shapes or (), tokens)
    graph = read_sized(model, shapes, scenarios) if scenarios else read_graph(model, shapes, dynamic=True)
    document = _statistics(graph)
    document["data_shapes"] = [scenario.text for scenario in scenarios]
    is_known = bool(scenarios) or not document["dynamic_inputs"]
    if is_known and (devices is not None or graph.num_ops <= ASK_DEVICES_UP_TO):
        document["unsupported"] = _unsupported(model, shapes, scenarios, devices)
    if as_json:
        print_json(document)
    else:
        _print(document)


def _statistics(graph: Any) -> dict[str, Any]:
    from hsdag.ir import chain_partition, colocate, fingerprint, placement_units
    from hsdag.ir.coarsen import coarsen

    constraints = colocate(graph)
    inputs = [v for v, op_type in enumerate(graph.op_types) if op_type == "Parameter"]
    stages = {
        "chains": coarsen(graph, chain_partition(graph)),
        "colocation_sets": coarsen(graph, constraints.sets, constraints.edge_kept),
        "colocation_sets_and_chains": placement_units(graph, max_share=1.0),
        "placement_units": placement_units(graph),
    }
    return {
        "name": graph.name,
        "fingerprint": fingerprint(graph),
        "dynamic_inputs": [graph.op_names[v] for v in inputs if graph.is_dynamic is not None and graph.is_dynamic[v]],
        "nodes": graph.num_ops,
        "edges": graph.num_edges,
        "mean_degree": graph.mean_degree,
        "flops": float(graph.flops.sum()),
        "weight_bytes": int(graph.weight_bytes.sum()),
        "op_histogram": dict(Counter(graph.op_types).most_common()),
        "coarsening": {
            name: {"nodes": coarse.graph.num_ops, "edges": coarse.graph.num_edges} for name, coarse in stages.items()
        },
    }


def _unsupported(
    model: Path, shapes: dict[str, tuple[int, ...]], scenarios: Sequence[Scenario], devices: str | None
) -> dict[str, Any]:
    from hsdag.runtime.platforms.devices import resolve_devices
    from hsdag.search.session import Session

    found = resolve_devices(devices, None)
    with Session(model, found, shapes=shapes, scenarios=scenarios) as session:
        return {
            spec.name: [session.graph.op_names[v] for v in session.unsupported_ops(spec).tolist()]
            for spec in found.placed
        }


def _print(document: dict[str, Any]) -> None:
    typer.echo(f"{document['name']}  {document['fingerprint']}")
    typer.echo(
        f"nodes {document['nodes']}, edges {document['edges']}, mean degree {document['mean_degree']:.2f}, "
        f"{document['flops'] / 1e9:.4g} GFLOP, {document['weight_bytes'] / 2**20:.4g} MiB of weights"
    )
    stages = [[n.replace("_", " "), str(s["nodes"]), str(s["edges"])] for n, s in document["coarsening"].items()]
    print_table(None, ["coarsening", "nodes", "edges"], stages)
    print_table(None, ["op type", "ops"], [[t, str(n)] for t, n in document["op_histogram"].items()])
    if document["data_shapes"]:
        typer.echo("Sizes are those with the shapes of data: FLOPs are means, and weights include the largest state.")
    elif document["dynamic_inputs"]:
        option = ",".join(f"{name}[...]" for name in document["dynamic_inputs"])
        typer.echo(f"Dynamic dimensions of inputs count as 1, or as their bounds; fix them with --shape '{option}'.")
    if "unsupported" not in document and (document["data_shapes"] or not document["dynamic_inputs"]):
        typer.echo(f"Devices were not queried: the model has over {ASK_DEVICES_UP_TO} ops; name them with --devices.")
    for device, ops in document.get("unsupported", {}).items():
        examples = f", for example {', '.join(ops[:3])}" if ops else ""
        typer.echo(f"{device} does not run {len(ops)} of the ops{examples}." if ops else f"{device} runs every op.")
