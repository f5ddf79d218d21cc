"""Per-op reports: the heaviest ops of a model, and which device runs them best. Legend: D devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.ir.colocation import floating_ops
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import ComputationGraph, FloatArray
from hsdag.ir.partition import Partition
from hsdag.ir.scenario import Scenario
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.platforms.devices import DeviceSet, make_core
from hsdag.search.session import Session


@dataclass(frozen=True)
class OpRow:
    """Ops that some device computes as one: the heaviest of them, and the best device."""

    name: str
    op_type: str
    num_ops: int
    time_s: tuple[float | None, ...]  # [D] None where unsupported
    best: int | None  # None where several devices are equally fast
    share: float  # in all groups, each at its best device


@dataclass(frozen=True)
class OpReport:
    """Rows, heaviest first, and for each device all ops together, where it wins, and what that saves."""

    devices: tuple[str, ...]
    rows: tuple[OpRow, ...]
    total_s: tuple[float | None, ...]  # [D]
    wins: tuple[int, ...]  # [D]
    saved_s: tuple[float, ...]  # [D] over the next best device

    def document(self, top: int) -> dict[str, Any]:
        """The report as JSON values, with the ``top`` heaviest rows."""
        return {
            "devices": [
                {"name": name, "total_s": total_s, "wins": wins, "saved_s": saved_s}
                for name, total_s, wins, saved_s in zip(
                    self.devices, self.total_s, self.wins, self.saved_s, strict=True
                )
            ],
            "ops": [
                {
                    "name": row.name,
                    "type": row.op_type,
                    "fused_ops": row.num_ops,
                    "time_s": dict(zip(self.devices, row.time_s, strict=True)),
                    "best": None if row.best is None else self.devices[row.best],
                    "share": row.share,
                }
                for row in self.rows[:top]
            ],
        }


def run_per_op(
    source: Any,
    devices: tuple[DeviceSpec, ...],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Path | None = None,
    scenarios: Sequence[Scenario] = (),
    seed: int = 0,
    cache: ProfileCache | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> OpReport:
    """Profile a model on devices and compare them op by op. Raises DeviceError when one cannot be profiled."""
    make_core(devices)
    given: dict[str, Any] = {"shapes": shapes, "inputs": inputs, "scenarios": scenarios, "seed": seed}
    with Session(source, DeviceSet(devices, ()), **given) as session:
        return report_ops(session.graph, session.profile(cache, on_step=on_step))


def report_ops(graph: ComputationGraph, profile: ModelProfile) -> OpReport:
    """Compare devices by groups of ops; ops that some device fuses are compared together on all."""
    pairs = np.asarray([(ops[0], v) for ops in profile.fused for v in ops[1:]], dtype=np.int64).reshape(-1, 2)
    groups = Partition.from_pairs(graph.num_ops, pairs[:, 0], pairs[:, 1])
    time_s = np.stack(
        [np.bincount(groups.labels, device.time_s, groups.num_groups) for device in profile.times], axis=1
    )  # NaN where any op of the group is unsupported
    ranked_s = np.sort(np.append(time_s, np.full((groups.num_groups, 1), np.nan), axis=1), axis=1)  # NaN comes last
    best_s = np.nan_to_num(ranked_s[:, 0])
    is_won = (best_s > 0) & (ranked_s[:, 0] != ranked_s[:, 1])
    winner = np.where(is_won, np.where(np.isnan(time_s), np.inf, time_s).argmin(axis=1), -1)
    gain_s = np.nan_to_num(ranked_s[:, 1] - ranked_s[:, 0])
    floating, rows = floating_ops(graph), []
    for g in np.argsort(-best_s, kind="stable")[: int((best_s > 0).sum())].tolist():
        ops = [v for v in groups.members.of(g).tolist() if not floating[v]] or groups.members.of(g).tolist()
        head = max(ops, key=lambda v: (graph.flops[v], -graph.position[v]))
        best, share = int(winner[g]) if is_won[g] else None, float(best_s[g] / best_s.sum())
        rows.append(OpRow(graph.op_names[head], graph.op_types[head], len(ops), _seconds(time_s[g]), best, share))
    devices = range(len(profile.devices))
    return OpReport(
        devices=tuple(spec.name for spec in profile.devices),
        rows=tuple(rows),
        total_s=_seconds(time_s.sum(axis=0)),
        wins=tuple(int((winner == d).sum()) for d in devices),
        saved_s=tuple(float(gain_s[winner == d].sum()) for d in devices),
    )


def _seconds(times_s: FloatArray) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(s) else float(s) for s in times_s)
