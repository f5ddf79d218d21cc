"""What HETERO would do with a model, known before the model is compiled.

Its rules are those of OpenVINO 2026.4 (src/plugins/hetero/src/plugin.cpp, ``split_graph`` and ``query_model_update``).

Legend: N ops of the model, D devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import ComputationGraph, IntArray
from hsdag.ir.submodels import automatic_submodels, placed_submodels, with_results

PIPELINE_PARALLEL = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}
ROOM = 1.2
"""With PIPELINE_PARALLEL, HETERO takes a device's memory to hold a model if it is so many times its weights."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """A model on HETERO's devices; ``failure`` is why it would not be compiled.

    ``devices`` are OpenVINO's names in the order of priority, ``device`` [N] counts in them, and is -1 for ops that
    none of them runs; ``submodel`` [N] is -1 for constants, and for ops that HETERO drops.
    """

    devices: tuple[str, ...]
    policy: str | None
    device: IntArray
    submodel: IntArray
    failure: str | None = None

    @property
    def num_submodels(self) -> int:
        """How many submodels HETERO compiles."""
        return int(self.submodel.max(initial=-1)) + 1

    @property
    def ops(self) -> dict[str, int]:
        """Ops on each device, constants and Parameters counted."""
        counts = Counter(self.device.tolist())
        return {name: counts[d] for d, name in enumerate(self.devices)}

    @property
    def submodels(self) -> dict[str, int]:
        """Submodels on each device."""
        homes = {s: d for s, d in zip(self.submodel.tolist(), self.device.tolist(), strict=True) if s >= 0}
        counts = Counter(homes.values())
        return {name: counts[d] for d, name in enumerate(self.devices)}

    @property
    def empty(self) -> list[str]:
        """Devices that get no op."""
        return [name for name, count in self.ops.items() if not count]

    def weight_bytes(self, graph: ComputationGraph) -> dict[str, int]:
        """Bytes of constants that ops on each device read, each constant once for a device."""
        reads = graph.weight_bytes[graph.edge_src] > 0
        held, home = np.unique(np.stack((graph.edge_src, self.device[graph.edge_dst]))[:, reads], axis=1)
        return {name: int(graph.weight_bytes[held[home == d]].sum()) for d, name in enumerate(self.devices)}

    def parted_variables(self, graph: ComputationGraph) -> dict[str, list[str]]:
        """Variables that one submodel reads and another one writes, with the devices; HETERO loses their state."""
        places: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for v, variable in enumerate(graph.variables):
            if variable:
                places[variable][int(self.submodel[v])] = int(self.device[v])
        names = (*self.devices, "no device")
        return {key: [names[d] for d in place.values()] for key, place in places.items() if len(place) > 1}


def given_distribution(graph: ComputationGraph, affinities: Sequence[str]) -> Distribution:
    """What HETERO makes of affinities [N] that a model has itself, "" for none. Some op has one."""
    devices = tuple(dict.fromkeys(filter(None, affinities)))
    index = {name: d for d, name in enumerate(devices)}
    device = np.array([index.get(name, -1) for name in affinities], dtype=np.int64)
    missing = [graph.op_names[v] for v in np.flatnonzero(device < 0).tolist()]
    if missing:
        reason = f"{len(missing)} of {graph.num_ops} ops have no affinity, for example {missing[0]!r}"
        return Distribution(devices, None, device, np.full(graph.num_ops, -1, dtype=np.int64), reason)
    device = with_results(graph, device)
    return Distribution(devices, None, device, placed_submodels(graph, device))


def automatic_distribution(
    graph: ComputationGraph, devices: Sequence[str], chosen: Sequence[str], policy: str | None
) -> Distribution:
    """What HETERO makes of its own choice [N] of a device for every op, "" for none.

    The GPU plugin names its own device where a further one over it was asked for: such names are added.
    """
    names = tuple(dict.fromkeys((*devices, *filter(None, chosen))))
    index = {name: d for d, name in enumerate(names)}
    device = np.array([index.get(name, -1) for name in chosen], dtype=np.int64)
    nowhere = np.flatnonzero(device < 0).tolist()
    if nowhere:
        op = f"{graph.op_names[nowhere[0]]!r} ({graph.op_types[nowhere[0]]})"
        reason = f"no device of {', '.join(devices)} runs {len(nowhere)} of {graph.num_ops} ops, for example {op}"
        return Distribution(names, policy, device, np.full(graph.num_ops, -1, dtype=np.int64), reason)
    device = with_results(graph, device)
    return Distribution(names, policy, device, automatic_submodels(graph, device))


def counted_bytes(graph: ComputationGraph) -> int:
    """The weights as HETERO counts them: at least one byte for every element."""
    is_constant = np.isin(graph.op_types, ["Constant"])
    elements = np.array([int(np.prod(graph.shape_of(v))) for v in np.flatnonzero(is_constant).tolist()], dtype=np.int64)
    return int(np.maximum(elements, graph.output_bytes[is_constant]).sum())


def first_share(devices: Sequence[str], memory_bytes: Mapping[str, float | None], counted: int) -> float:
    """The share of the weights that PIPELINE_PARALLEL lets the first device take, before it is asked for its ops.

    The CPU is taken to hold everything, and so is a device that does not tell its memory, and the last one.
    """
    first, memory = devices[0], {name: memory_bytes.get(name) or 0.0 for name in devices if "GPU" in name}
    if len(devices) < 2 or not memory.get(first) or memory[first] >= ROOM * counted:
        return 1.0
    if sum(memory.values()) >= ROOM * counted or any("CPU" in name for name in devices):
        return 1.0 if counted < memory[first] else memory[first] / (ROOM * counted)
    return memory[first] / sum(memory.values())


def size_words(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.3g} MB"


def why_empty(found: Distribution, name: str, memory_bytes: Mapping[str, float | None], counted: int) -> str:
    """A sentence that says why a device gets nothing."""
    first, busy = found.devices[0], [other for other, count in found.ops.items() if count]
    is_measured = found.policy is not None and "GPU" in first and memory_bytes.get(first) is not None
    if is_measured and first_share(found.devices, memory_bytes, counted) == 1.0:
        return f"{name} will get nothing because {first} holds {ROOM:g} x {size_words(counted)}"
    return f"{name} will get nothing because {' and '.join(busy)} run{'s' * (len(busy) < 2)} every op"
