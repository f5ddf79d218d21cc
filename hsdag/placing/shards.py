"""Shards in a search: what is proposed for a session's model, as candidates and as placement files have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hsdag.ir.graph.colocation import held_bytes
from hsdag.ir.graph.reader import load_model
from hsdag.ir.graph.state import variable_of
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.methods.sharding import ShardCosts, Sharding, propose
from hsdag.placing.session import Session
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import reduces_precision
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import LATENCY
from hsdag.search.options import PlaceOptions


def proposed_shards(session: Session, options: PlaceOptions, profile: ModelProfile) -> dict[str, Sharding]:
    """Ways to divide the model, by the names that they have in the comparison; none where the options leave none.

    Models that keep state or have inputs of unknown sizes are not divided, and pins and limits of memory rule it out.
    """
    graph = session.graph
    is_out = options.pins or options.memory_bytes or options.objective is not LATENCY or session.scenarios
    if session.is_on_torch or is_out or variable_of(graph) is not None:
        return {}
    shapes = shapes_of(_model(session), graph)[1]
    found = propose(shapes, shard_costs(session, profile))
    return {f"shards {rank}": sharding for rank, sharding in enumerate(found, start=1)}


def told_under_hetero(session: Session, shardings: Mapping[str, Sharding], profile: ModelProfile) -> str | None:
    """What HETERO, which runs its submodels one after another, leaves out; None where nothing is gained."""
    if not shardings:
        return None
    whole_s = np.nan_to_num(shard_costs(session, profile).time_s).sum(axis=0).min()
    share = min(each.predicted_s for each in shardings.values()) / whole_s
    return (
        f"hsdag's own executor can divide this model: simulated, without what devices slow each other down, it takes "
        f"{share:.2f} of the time on one device; measure it with --executor work-conserving"
    )


def shard_costs(session: Session, profile: ModelProfile) -> ShardCosts:
    """What shards take by a profile: devices slow each other down, and parts start, write and read."""
    costs = WorkConservingCosts.of(session.graph, profile.costs())
    own, per_byte = costs.cut_costs, costs.cut_costs.read_s_per_byte + costs.cut_costs.write_s_per_byte
    slowdown = np.ones(costs.num_devices) if costs.slowdown is None else costs.slowdown.max(axis=1)
    return ShardCosts(own.op_s, slowdown, float(own.launch_s.max()), float(per_byte.max()))


def sharded_candidate(session: Session, sharding: Sharding) -> Candidate:
    """A way to divide the model as something to compile."""
    order = [spec.openvino_name for spec in session.devices.placed]
    return Candidate.sharded(sharding.regions, sharding.devices, order)


def ops_by_device(session: Session, sharding: Sharding) -> dict[str, int]:
    """The ops that each device computes, all or a share of them."""
    divided = {v: list(region.shares) for region in sharding.regions for v in region.ops}
    found = {spec.name: 0 for spec in session.devices.placed}
    for v, device in enumerate(sharding.devices):
        for d in divided.get(v, [device]):
            found[session.devices.placed[d].name] += 1
    return found


def weights_by_device(session: Session, sharding: Sharding) -> Mapping[str, float]:
    """Bytes of weights on each device, those that several need counted on each."""
    placed = session.devices.placed
    names = [spec.name for spec in placed]
    found = shard(_model(session), session.graph, sharding.regions, sharding.devices, names)
    widens = np.array([not reduces_precision((spec,)) for spec in placed])
    return dict(zip(names, held_bytes(found.graph, np.array(found.devices), widens).tolist(), strict=True))


def _model(session: Session) -> Any:
    return load_model(session.subject.path, session.subject.shapes)
