"""Placements over CPU devices of one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.placement.placement import Placement
from tests.placements import by_hand


def placed(
    model: ov.Model,
    device_of: Callable[[str, int], int],
    num_devices: int = 2,
    priority: dict[str, int] | None = None,
    devices: Sequence[DeviceSpec] | None = None,
) -> Placement:
    """A placement by a function of the name of a co-location set's first op, and the number of the set.

    On ``num_devices`` over the CPU plugin, or on ``devices``.
    """
    plain = "CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]"
    chosen = list(devices or (DeviceSpec.parse(f"CPU_{d}={plain}") for d in range(num_devices)))
    graph = graph_of(model.clone())
    colocation = colocate(graph)
    sets = colocation.sets.labels.tolist()
    first: dict[int, str] = {}
    for v in np.flatnonzero(~colocation.floating).tolist():
        first.setdefault(sets[v], graph.op_names[v])
    device = {s: chosen[device_of(name, s) % len(chosen)].name for s, name in first.items()}
    priority = {graph.canonical_names[graph.index_of[name]]: rank for name, rank in (priority or {}).items()} or None
    names = [device.get(s, chosen[0].name) for s in sets]
    return by_hand(graph, chosen, names, executor="work-conserving", priority=priority)


def alternating(model: ov.Model) -> Placement:
    """Every second co-location set on the second device."""
    return placed(model, lambda _, s: s)


def drawn(model: ov.Model, seed: int, num_devices: int = 2) -> Placement:
    """Every co-location set on a device drawn for it."""
    rng = np.random.default_rng(seed)
    return placed(model, lambda *_: int(rng.integers(num_devices)), num_devices)
