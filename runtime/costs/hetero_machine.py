"""The time of a placement under HETERO while a local search changes it, compiled: exactly what ``HeteroCosts`` says.

``propose`` gives the time after some units have moved; ``accept`` or ``reject`` follows it. Work, and what crosses
between devices, follow from the units that moved and their neighbours. Submodels do not; but what a group of joined ops
on one device is cut into depends on that group alone, so that most bad proposals are seen to exceed the limit before
any submodel is looked at. Others are remembered from an earlier look, by a hash of 62 random bits: one in 10^18 of them
would be rejected wrongly.

A group is what ops on one device that edges join form before HETERO cuts it.

Legend: N ops, M nodes that run on data, T tensors that they read, U units, D devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import bare, inlined, merged
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.ir.hetero.rules import Workspace, cut_returns, join, open_rings
from hsdag.ir.hetero.submodels import Nodes
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.simulator.heaps import Records

ROUNDING = 1e-9
"""By this share a lower bound has to exceed the limit."""
KNOWN = 1 << 14
"""How many placements are remembered: a cold search proposes the same ones again and again."""
REFRESH = 1024
"""Accepted proposals after which sums are formed anew."""

RUN = np.dtype(
    [
        ("is_period", "i8"),  # whether the value is a period, else a latency
        ("value_s", "f8"),  # of the placement that was accepted last
        ("proposed_s", "f8"),
        ("row", "i8"),  # of ``Groups`` which holds that placement
        ("num_moved", "i8"),
        ("num_unsupported", "i8"),  # units on a device that lacks one of their ops
        ("num_accepted", "i8"),
        ("clock", "i8"),
        ("key", "i8"),  # of the proposed placement
    ],
    align=True,
)


class Groups(NamedTuple):
    """Groups of the accepted placement and of the proposed one, and their sums; by group where not by node.

    ``extra_s`` is what a group costs beyond one launch, before groups that wait for each other still are taken apart.
    """

    label: IntArray  # [2, M]
    size: IntArray  # [2, M]
    extra_s: FloatArray  # [2, M]
    least_s: FloatArray  # [2, D] launches and extras
    seen: IntArray  # [2, M] the last proposal that took a node from a group, or put one beside it
    left: IntArray  # [M] nodes that a group keeps
    node_seen: IntArray  # [M] the last proposal that moved a node
    tensor_seen: IntArray  # [T] when a tensor's conversion was counted last
    is_joined: BoolArray  # [D] whether nodes come to a device


class HeteroMachine(NamedTuple):
    """A placement, a proposal to change it, and scratch; for one thread."""

    nodes: Nodes
    room: Workspace
    edge_tensor: IntArray  # [K] the tensor that an edge carries
    unit_s: FloatArray  # [U, D] seconds of a unit's ops, 0 where unsupported
    lacks: IntArray  # [U, D] whether a device lacks an op of the unit
    unit_first: IntArray  # [U + 1]
    unit_node: IntArray  # [M] the nodes of unit u are unit_node[unit_first[u]:unit_first[u + 1]]
    launch_s: FloatArray  # [D]
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    placement: IntArray  # [U] as proposed, like the next two
    device: IntArray  # [M]
    readers: IntArray  # [T, D] edges to a device that carry a tensor
    moved: IntArray  # [2, U] units that moved, and from where
    load_s: FloatArray  # [2, D] work and crossings between devices: as proposed, and as accepted
    bound_s: FloatArray  # [D] scratch
    groups: Groups
    keys: IntArray  # [U, D] random; those of a placement's units, exclusively or-ed, are its own
    known_key: IntArray  # [KNOWN] placements that were looked at
    known_s: FloatArray  # [KNOWN] the least that they take
    run: Records  # [1] RUN


def hetero_machine(
    costs: HeteroCosts, unit_of_op: IntArray, placement: IntArray, is_period: bool = False
) -> HeteroMachine:
    """A machine at ``placement`` [U]; ``run[0].value_s`` is its time. ``unit_of_op`` is [N]; every op is in a unit."""
    nodes, d, num_units = costs.collector.nodes, costs.num_devices, len(placement)
    m, num_tensors = len(nodes.op), len(nodes.tensors.size_bytes)
    time_s, unit = costs.costs.time_s, unit_of_op[nodes.op]
    unit_s, lacks = np.zeros((num_units, d)), np.zeros((num_units, d), dtype=np.int64)
    np.add.at(unit_s, unit_of_op, np.nan_to_num(time_s))
    np.logical_or.at(lacks, unit_of_op, np.isnan(time_s))
    unit_s[lacks > 0] = 0.0
    edge_tensor = np.zeros(len(nodes.net.src), dtype=np.int64)
    edge_tensor[nodes.tensors.edge] = np.repeat(np.arange(num_tensors), np.diff(nodes.tensors.start))
    h = HeteroMachine(
        nodes=nodes,
        room=Workspace.of(nodes.net),
        edge_tensor=edge_tensor,
        unit_s=unit_s,
        lacks=lacks,
        unit_first=np.append(0, np.cumsum(np.bincount(unit, minlength=num_units))).astype(np.int64),
        unit_node=np.argsort(unit, kind="stable").astype(np.int64),
        launch_s=costs.costs.launch_s.astype(np.float64),
        latency_s=costs.costs.link_latency_s.astype(np.float64),
        s_per_byte=1.0 / costs.costs.link_bandwidth_bytes_per_s,
        placement=np.array(placement, dtype=np.int64),
        device=np.array(placement, dtype=np.int64)[unit],
        readers=np.zeros((num_tensors, d), dtype=np.int64),
        moved=np.zeros((2, num_units), dtype=np.int64),
        load_s=np.zeros((2, d)),
        bound_s=np.zeros(d),
        groups=_no_groups(m, num_tensors, d),
        keys=np.random.default_rng(0).integers(1 << 62, size=(num_units, d)),
        known_key=np.zeros(KNOWN, dtype=np.int64),
        known_s=np.zeros(KNOWN),
        run=np.zeros(1, RUN),
    )
    h.run["is_period"], h.run["clock"] = is_period, 1
    h.run["num_unsupported"] = lacks[np.arange(num_units), placement].sum()
    _sum_up(h)
    propose(h, h.placement[:0], h.placement[:0], 0, np.inf)
    accept(h)
    return h


def _no_groups(m: int, num_tensors: int, d: int) -> Groups:
    return Groups(
        label=np.zeros((2, m), dtype=np.int64),
        size=np.zeros((2, m), dtype=np.int64),
        extra_s=np.zeros((2, m)),
        least_s=np.zeros((2, d)),
        seen=np.zeros((2, m), dtype=np.int64),
        left=np.zeros(m, dtype=np.int64),
        node_seen=np.zeros(m, dtype=np.int64),
        tensor_seen=np.zeros(num_tensors, dtype=np.int64),
        is_joined=np.zeros(d, dtype=np.bool_),
    )


@bare
def propose(h: HeteroMachine, units: IntArray, devices: IntArray, count: int, limit_s: float) -> float:
    """The time after ``count`` distinct units have moved to devices; more than ``limit_s`` where it certainly is.

    A proposal whose value is more than ``limit_s`` can only be rejected.
    """
    _copy(h.load_s[0], h.load_s[1])
    h.run[0].clock += 1
    h.run[0].num_moved = 0
    for i in range(count):
        u = units[i]
        if h.placement[u] != devices[i]:
            k = h.run[0].num_moved
            h.moved[0, k], h.moved[1, k] = u, h.placement[u]
            h.run[0].num_moved = k + 1
            _move(h, u, devices[i])
    if h.run[0].num_unsupported:
        return np.inf
    bound_s = _least_s(h)
    place = h.run[0].key % KNOWN
    if h.known_key[place] == h.run[0].key:
        bound_s = max(bound_s, h.known_s[place])
    if bound_s * (1.0 - ROUNDING) > limit_s:
        return bound_s
    proposed_s: float = _exact_s(h, limit_s)
    h.known_key[place], h.known_s[place] = h.run[0].key, proposed_s
    h.run[0].proposed_s = proposed_s
    return proposed_s


@bare
def accept(h: HeteroMachine) -> None:
    """Make the proposed placement the current one."""
    h.run[0].row = 1 - h.run[0].row
    h.run[0].value_s = h.run[0].proposed_s
    h.run[0].num_accepted += 1
    if h.run[0].num_accepted % REFRESH == 0:
        _sum_up(h)


@bare
def reject(h: HeteroMachine) -> None:
    """Forget the proposal."""
    for k in range(h.run[0].num_moved):
        _move(h, h.moved[0, k], h.moved[1, k])
    _copy(h.load_s[1], h.load_s[0])


@inlined
def _copy(values: FloatArray, to: FloatArray) -> None:
    for i in range(len(values)):
        to[i] = values[i]


@bare
def _sum_up(h: HeteroMachine) -> None:
    """Fill ``readers`` and ``load_s`` for the placement."""
    net, tensors = h.nodes.net, h.nodes.tensors
    h.load_s[0] = 0.0
    for u in range(len(h.placement)):
        h.load_s[0, h.placement[u]] += h.unit_s[u, h.placement[u]]
    for v in range(len(h.device)):
        for t in range(tensors.of_node[v], tensors.of_node[v + 1]):
            h.readers[t] = 0
            for e in tensors.edge[tensors.start[t] : tensors.start[t + 1]]:
                h.readers[t, h.device[net.dst[e]]] += 1
            _send(h, t, h.device[v], 1.0)


@inlined
def _send(h: HeteroMachine, t: int, home: int, sign: float) -> None:
    """Add what it takes to send tensor t from device ``home`` to others, or take it away."""
    for d in range(len(h.launch_s)):
        if d != home and h.readers[t, d]:
            h.load_s[0, d] += sign * _cross_s(h, t, home, d)


@inlined
def _cross_s(h: HeteroMachine, t: int, home: int, away: int) -> float:
    """Seconds that tensor t takes into another submodel."""
    cost_s: float = h.latency_s[home, away] + h.nodes.tensors.size_bytes[t] * h.s_per_byte[home, away]
    return cost_s


@inlined
def _move(h: HeteroMachine, u: int, to: int) -> None:
    """Put unit u on device ``to``."""
    net, tensors, old = h.nodes.net, h.nodes.tensors, h.placement[u]
    h.placement[u] = to
    h.run[0].key ^= h.keys[u, old] ^ h.keys[u, to]
    h.run[0].num_unsupported += h.lacks[u, to] - h.lacks[u, old]
    h.load_s[0, old] -= h.unit_s[u, old]
    h.load_s[0, to] += h.unit_s[u, to]
    for v in h.unit_node[h.unit_first[u] : h.unit_first[u + 1]]:
        h.device[v] = to
        for t in range(tensors.of_node[v], tensors.of_node[v + 1]):
            _send(h, t, old, -1.0)
            _send(h, t, to, 1.0)
        for e in range(net.first[v], net.constant[v]):
            t, home = h.edge_tensor[e], h.device[net.src[e]]
            h.readers[t, old] -= 1
            if old != home and h.readers[t, old] == 0:
                h.load_s[0, old] -= _cross_s(h, t, home, old)
            if to != home and h.readers[t, to] == 0:
                h.load_s[0, to] += _cross_s(h, t, home, to)
            h.readers[t, to] += 1


@inlined
def _value_s(h: HeteroMachine, launched_s: FloatArray) -> float:
    """Latency or period of what devices [D] spend on launches and conversions, and of their other loads."""
    total_s, largest_s = 0.0, 0.0
    for d in range(len(launched_s)):
        total_s += h.load_s[0, d] + launched_s[d]
        largest_s = max(largest_s, h.load_s[0, d] + launched_s[d])
    return largest_s if h.run[0].is_period else total_s


@merged
def _least_s(h: HeteroMachine) -> float:
    """A lower bound of the proposal's time.

    A group that neither lost a node nor is next to one that moved costs what it did. Of one that lost some, at least
    one submodel is left. Nodes that came to a device form one at least with all the groups beside them.
    """
    g, net = h.groups, h.nodes.net
    _copy(g.least_s[h.run[0].row], h.bound_s)
    g.is_joined[:] = False
    for k in range(h.run[0].num_moved):
        for v in h.unit_node[h.unit_first[h.moved[0, k]] : h.unit_first[h.moved[0, k] + 1]]:
            _take(h, v, h.moved[1, k])
    for k in range(h.run[0].num_moved):
        for v in h.unit_node[h.unit_first[h.moved[0, k]] : h.unit_first[h.moved[0, k] + 1]]:
            if not g.is_joined[h.device[v]]:
                g.is_joined[h.device[v]] = True
                h.bound_s[h.device[v]] += h.launch_s[h.device[v]]
            for e in range(net.first[v], net.constant[v]):
                _put_beside(h, net.src[e], h.device[v])
            for i in range(net.out_first[v], net.out_first[v + 1]):
                _put_beside(h, net.dst[net.out_edge[i]], h.device[v])
    return _value_s(h, h.bound_s)


@inlined
def _take(h: HeteroMachine, v: int, old: int) -> None:
    """Note that a group lost node v to another device."""
    g, row, now = h.groups, h.run[0].row, h.run[0].clock
    s = g.label[row, v]
    g.node_seen[v] = now
    if g.seen[0, s] != now:
        g.seen[0, s], g.left[s] = now, g.size[row, s]
        h.bound_s[old] -= g.extra_s[row, s]
    g.left[s] -= 1
    if not g.left[s]:
        h.bound_s[old] -= h.launch_s[old]


@inlined
def _put_beside(h: HeteroMachine, v: int, to: int) -> None:
    """Note that a node that came to device ``to`` is next to v."""
    g, row, now = h.groups, h.run[0].row, h.run[0].clock
    s = g.label[row, v]
    if h.device[v] == to and g.node_seen[v] != now and g.seen[1, s] != now:
        g.seen[1, s] = now
        h.bound_s[to] -= h.launch_s[to]
        if g.seen[0, s] != now:
            h.bound_s[to] -= g.extra_s[row, s]


@merged
def _exact_s(h: HeteroMachine, limit_s: float) -> float:
    """The proposal's time, or a lower bound beyond the limit; fills its row of ``groups``."""
    g, room, row = h.groups, h.room, 1 - h.run[0].row
    waits = join(h.nodes.net, room, h.device)
    _note_groups(h, row)
    value_s = _value_s(h, g.least_s[row])
    if not waits or value_s * (1.0 - ROUNDING) > limit_s:
        return value_s
    num_cut = cut_returns(h.nodes.net, room)
    _note_extras(h, row, num_cut)
    value_s = _value_s(h, g.least_s[row])
    if value_s * (1.0 - ROUNDING) > limit_s:
        return value_s
    num_opened = open_rings(h.nodes.net, room, num_cut) - num_cut
    if not num_opened:
        return value_s
    h.bound_s[:] = 0.0
    for v in range(len(h.device)):
        if room.parts.label[v] == v:
            h.bound_s[h.device[v]] += h.launch_s[h.device[v]]
    for e in room.cut[: num_cut + num_opened]:
        h.bound_s[h.device[h.nodes.net.dst[e]]] += _convert_s(h, e, 2 * h.run[0].clock + 1)
    return _value_s(h, h.bound_s)


@inlined
def _note_groups(h: HeteroMachine, row: int) -> None:
    """Fill a row of ``groups``; extras only of groups that are as they were in the other row."""
    g, parts, now = h.groups, h.room.parts, h.run[0].clock
    g.least_s[row] = 0.0
    for v in range(len(h.device)):
        s = g.label[1 - row, v]
        g.label[row, v] = parts.label[v]
        if parts.label[v] == v:
            g.size[row, v] = parts.size[v]
            is_as_it_was = g.node_seen[v] != now and g.seen[0, s] != now and g.seen[1, s] != now
            g.extra_s[row, v] = g.extra_s[1 - row, s] if is_as_it_was else 0.0
            g.least_s[row, h.device[v]] += h.launch_s[h.device[v]] + g.extra_s[row, v]


@inlined
def _note_extras(h: HeteroMachine, row: int, num_cut: int) -> None:
    """Fill in the extras of a row of ``groups``, for groups cut over the first ``num_cut`` edges in ``cut``."""
    g, parts, cut, net = h.groups, h.room.parts, h.room.cut, h.nodes.net
    for v in range(len(h.device)):
        s = g.label[row, v]
        if s == v:
            g.extra_s[row, v] = 0.0
        elif parts.label[v] == v:
            g.extra_s[row, s] += h.launch_s[h.device[v]]
    for e in cut[:num_cut]:
        g.extra_s[row, g.label[row, net.dst[e]]] += _convert_s(h, e, 2 * h.run[0].clock)
    g.least_s[row] = 0.0
    for v in range(len(h.device)):
        if g.label[row, v] == v:
            g.least_s[row, h.device[v]] += h.launch_s[h.device[v]] + g.extra_s[row, v]


@inlined
def _convert_s(h: HeteroMachine, e: int, stamp: int) -> float:
    """Seconds to convert what edge e carries, which was cut inside a group; 0 where the tensor has been seen."""
    label, u, t = h.room.parts.label, h.nodes.net.src[e], h.edge_tensor[e]
    home, goes = h.device[u], False
    for d in range(len(h.launch_s)):
        goes = goes or (d != home and h.readers[t, d] > 0)
    if goes or label[u] == label[h.nodes.net.dst[e]] or h.groups.tensor_seen[t] == stamp:
        return 0.0
    h.groups.tensor_seen[t] = stamp
    cost_s: float = _cross_s(h, t, home, home)
    return cost_s
