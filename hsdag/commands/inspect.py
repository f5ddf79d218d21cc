"""Describe what is available: devices, models and workloads to build, and the graph of a model in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.base.errors import OptionError, checked, option
from hsdag.ir.graph.build import fingerprint, graph_of
from hsdag.ir.graph.coarsen import chain_partition, coarsen, placement_units
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.reader import Shapes, input_name, input_shapes, load_model
from hsdag.ir.graph.scenario import Scenario, parse_scenarios
from hsdag.ir.graph.sizing import sized
from hsdag.ir.placement.placement import Record
from hsdag.ir.shards.rules import RULES
from hsdag.models import LANGUAGE_MODELS, MODELS, WORKLOADS
from hsdag.runtime.machine.devices import (
    CudaInfo,
    DeviceInfo,
    DeviceSet,
    cpu_topology,
    list_cuda,
    list_devices,
    resolve_devices,
)
from hsdag.runtime.measuring.messages import WorkerSetup, worker_client
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.runner import unsupported_ops

if TYPE_CHECKING:
    from hsdag.commands.place.session import Session

ASK_DEVICES_UP_TO = 20_000
"""Without ``devices``, query devices only about models of up to this many ops; OpenVINO takes a minute for 100,000."""

NO_PRICE = 1e-6
"""Price of syncs, relative to their time, for finding everything that could be divided."""


class CpuThreads(Record):
    """Threads of the CPU; ``max_partitions`` is 0 if it cannot be divided."""

    performance_threads: int
    efficiency_threads: int
    max_partitions: int


class DevicesResult(Record):
    """The devices of this machine."""

    openvino: tuple[DeviceInfo, ...]
    cuda: tuple[CudaInfo, ...]
    cpu: CpuThreads


class Entry(Record):
    """A model or workload."""

    name: str
    summary: str


class ModelsResult(Record):
    """The models and workloads that can be built."""

    models: tuple[Entry, ...]
    workloads: tuple[Entry, ...]


class BuiltModel(Record):
    """A model that was built."""

    name: str
    seed: int
    path: Path


class BuiltWorkload(Record):
    """A problem file that was built; ``source`` says where its costs come from."""

    name: str
    path: Path
    ops: int
    edges: int
    devices: int
    source: str


class Size(Record):
    """Size of a coarsened graph."""

    nodes: int
    edges: int


class Port(Record):
    """An input or output; ``?`` in its shape is a size that is not fixed."""

    name: str
    type: str
    shape: str

    @staticmethod
    def of(port: Any) -> Port:
        """Return the record of a port of an ``ov.Model``."""
        kind = port.get_element_type().get_type_name()
        return Port(name=input_name(port), type=kind, shape=str(port.get_partial_shape()))


class RegionBound(Record):
    """Ops that devices could compute together, and what dividing them could gain.

    Times are those on the fastest device alone (``whole_s``), at best when divided (``bound_s``), and of the syncs at
    both ends (``sync_s``). ``last`` is the last of the ops; ``pays`` says whether dividing this region alone would gain
    anything.
    """

    scheme: str
    ops: int
    last: str
    whole_s: float
    bound_s: float
    sync_s: float
    pays: bool


class ShardBound(Record):
    """Upper bound on what dividing a model over devices could gain, from its profile, before any search.

    ``whole_s`` is the time on the fastest device alone; ``bound_s`` the time with all regions divided, free syncs and
    devices that do not slow each other down. ``slowdown`` is the largest factor by which they do. ``predicted_s`` is
    the simulated time of the best division, None if none is faster. ``left`` is the share of time, by kind, of ops in
    no region.
    """

    whole_s: float
    bound_s: float
    slowdown: float
    predicted_s: float | None
    regions: tuple[RegionBound, ...]
    left: dict[str, float]


class InspectResult(Record):
    """Figures of a model's graph.

    ``unsupported`` lists, by device, the ops that it does not run; None if devices were not queried. ``shards`` says
    what several named devices could gain together.
    """

    name: str
    fingerprint: str
    dynamic_inputs: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: int
    edges: int
    mean_degree: float
    flops: float
    weight_bytes: int
    op_histogram: dict[str, int]
    coarsening: dict[str, Size]
    data_shapes: tuple[str, ...]
    unsupported: dict[str, list[str]] | None
    shards: ShardBound | None = None


def devices() -> DevicesResult:
    """Return the devices that OpenVINO and torch list, and how the CPU can be divided, as ``hsdag devices`` does.

    Examples:
        >>> import hsdag
        >>> [device.name for device in hsdag.devices().openvino]
        ['CPU'...]
    """
    cpu = cpu_topology()
    parts = cpu.threads if cpu.threads > 1 else 0
    threads = CpuThreads(performance_threads=cpu.performance, efficiency_threads=cpu.efficiency, max_partitions=parts)
    return DevicesResult(openvino=tuple(list_devices()), cuda=tuple(list_cuda()), cpu=threads)


def zoo() -> ModelsResult:
    """Return the models and workloads that can be built."""
    models = tuple(Entry(name=spec.name, summary=spec.summary) for spec in (*MODELS, *LANGUAGE_MODELS))
    workloads = tuple(Entry(name=spec.name, summary=spec.summary) for spec in WORKLOADS.values())
    return ModelsResult(models=models, workloads=workloads)


@checked
def inspect(
    model: str | Path,
    *,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    devices: str | None = None,
) -> InspectResult:
    """Return a model's graph in figures and the ops that devices do not run, as ``hsdag inspect`` does.

    Devices are queried if sizes are known and the graph is small, or if they are named. Several named devices are
    profiled to find what they could gain by computing the model together. Raises ModelError and DeviceError as reading
    and loading do, and OptionError if devices are named for a model of unknown sizes.

    Examples:
        >>> import hsdag, openvino as ov, tempfile
        >>> x = ov.opset13.parameter([2], name="x")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ov.save_model(ov.Model([ov.opset13.relu(x)], [x], "small"), f"{folder}/small.xml")
        ...     result = hsdag.inspect(f"{folder}/small.xml")
        >>> result.nodes, result.op_histogram
        (3, {'Parameter': 1, 'Relu': 1, 'Result': 1})
    """
    shapes = input_shapes(shape)
    scenarios = parse_scenarios(data_shape, tokens)
    loaded = load_model(model, shapes, dynamic=True)
    of_model = [scenario.of(loaded) for scenario in scenarios]
    graph = graph_of(loaded)
    graph = sized(graph, loaded, of_model) if of_model else graph
    inputs = [v for v, op_type in enumerate(graph.op_types) if op_type == "Parameter"]
    dynamic = [graph.op_names[v] for v in inputs if graph.is_dynamic[v]]
    is_known = bool(scenarios) or not dynamic
    if devices is not None and not is_known:
        raise OptionError(
            f"{option('devices')} are asked about a model of known sizes: fix them with {option('shape')} or "
            f"{option('data_shape')}"
        )
    constraints = colocate(graph)
    stages = {
        "chains": coarsen(graph, chain_partition(graph)),
        "colocation_sets": coarsen(graph, constraints.sets, constraints.edge_kept),
        "colocation_sets_and_chains": placement_units(graph, max_share=1.0),
        "placement_units": placement_units(graph),
    }
    missing, shards = None, None
    if is_known and (devices is not None or graph.num_ops <= ASK_DEVICES_UP_TO):
        device_set = resolve_devices(devices, None)
        if devices is not None and len(device_set.placed) > 1:
            missing, shards = _of_devices_together(model, device_set, shapes, scenarios)
        else:
            with worker_client(WorkerSetup(Path(model), device_set.all, shapes, scenarios=tuple(of_model))) as client:
                missing = {spec.name: unsupported_ops(client, spec) for spec in device_set.placed}
    return InspectResult(
        name=graph.name,
        fingerprint=fingerprint(graph),
        dynamic_inputs=tuple(dynamic),
        inputs=tuple(Port.of(port) for port in loaded.inputs),
        outputs=tuple(Port.of(port) for port in loaded.outputs),
        nodes=graph.num_ops,
        edges=graph.num_edges,
        mean_degree=graph.mean_degree,
        flops=float(graph.flops.sum()),
        weight_bytes=int(graph.weight_bytes.sum()),
        op_histogram=dict(Counter(graph.op_types).most_common()),
        coarsening={
            name: Size(nodes=coarse.graph.num_ops, edges=coarse.graph.num_edges) for name, coarse in stages.items()
        },
        data_shapes=tuple(scenario.text for scenario in scenarios),
        unsupported=missing and {name: [graph.op_names[v] for v in ops] for name, ops in missing.items()},
        shards=shards,
    )


def _of_devices_together(
    model: str | Path, devices: DeviceSet, shapes: Shapes, scenarios: Sequence[Scenario]
) -> tuple[dict[str, IntArray], ShardBound | None]:
    """Return the ops that each device does not run, by its name, and what dividing the model could gain at most."""
    from hsdag.commands.place.loaded_model import ModelInputs
    from hsdag.commands.place.session import Session  # imported here because it loads all of a search

    with Session(model, devices, ModelInputs(shapes, scenarios=scenarios)) as session:
        missing = {spec.name: session.unsupported_ops(spec) for spec in devices.placed}
        return missing, shard_bound(session, session.profile(side_by_side=True))


def shard_bound(session: Session, profile: ModelProfile) -> ShardBound | None:
    """Return what dividing a session's model could gain at most; None if the model cannot be divided."""
    from hsdag.commands.place.shards import ShardProposals
    from hsdag.search.options import PlaceOptions

    proposals = ShardProposals(session, PlaceOptions(executor="work-conserving"), profile)
    if not proposals.is_possible:
        return None
    chooser, alone = proposals.choosers()
    free = alone.best(NO_PRICE)
    shown = alone.best() or free  # with syncs there are fewer and larger regions
    regions = () if shown is None else tuple(region for region in shown.regions if region.scheme != "replicated")
    figures = [chooser.divider.figures(region) for region in regions]
    inside = {v for region in regions for v in region.ops}
    work_s = np.nan_to_num(proposals.costs.table.op_s).min(axis=1)
    left: Counter[str] = Counter()
    for v in np.argsort(-work_s, kind="stable").tolist():
        if v not in inside and work_s[v] > 0:
            kind = session.graph.op_types[v]
            left[f"{kind}, {'between regions' if kind in RULES else 'which has no rule'}"] += work_s[v] / work_s.sum()
    best = next(iter(proposals.proposed()), None)
    return ShardBound(
        whole_s=proposals.whole_s,
        bound_s=proposals.whole_s if free is None else min(free.bound_s, proposals.whole_s),
        slowdown=float(chooser.costs.slowdown.max()),
        predicted_s=None if best is None else best.predicted_s,
        regions=tuple(
            RegionBound(
                scheme=region.scheme,
                ops=len(region.ops),
                last=session.graph.op_names[region.ops[-1]],
                **{name: getattr(figure, name) for name in ("whole_s", "bound_s", "sync_s", "pays")},
            )
            for region, figure in zip(regions, figures, strict=True)
        ),
        left=dict(left.most_common()),
    )
