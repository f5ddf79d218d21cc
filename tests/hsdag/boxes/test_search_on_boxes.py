"""A search for a placement that measures on processes which pass for machines of their own."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from hsdag.commands.outcome import Tally
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Pool
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.search.driver import Watcher
from hsdag.search.kept_run import KeptRun
from hsdag.search.measuring import boxes_for
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import search_placements
from hsdag.search.session import Session
from tests.hsdag.boxes.machines import DescribeApart, ProcessBox

pytestmark = pytest.mark.usefixtures("short_comparisons")


def options(reward: str, **changes: object) -> PlaceOptions:
    return PlaceOptions(method="random", reward=reward, budget_s=60.0, max_evaluations=12, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_machines_share_what_is_measured_and_the_run_folder_says_who_measured_what(
    tiny_resnet: Path, fast_slow: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    chosen, boxes = options("measured"), [ProcessBox("anna"), ProcessBox("berta")]
    with Session(tiny_resnet, resolve_devices(fast_slow, None)) as session, Pool(boxes) as pool:
        watcher = Watcher(on_note=notes.append)
        found = boxes_for(session, chosen, pool, watcher, DescribeApart)
        assert found is not None
        search = search_placements(
            session, chosen, run_folder=tmp_path / "run", watcher=watcher, pool=pool, boxes=found
        )
    assert notes == [f"3 machines measure placements: {found.here}, anna, berta"]
    counts = Tally.of(search.recorder.events).boxes
    assert set(counts) == {found.here, "anna", "berta"}
    assert sum(counts.values()) == 12
    assert all(event.score.failure is None for event in search.recorder.events)
    kept = KeptRun.load(tmp_path / "run").events
    assert Counter(event.score.box for event in kept) == counts


@pytest.mark.slow
def test_promising_plans_are_measured_on_all_machines_and_a_worker_may_be_killed_meanwhile(
    tiny_resnet: Path, fast_slow: str
) -> None:
    notes: list[str] = []
    chosen, boxes = options("hybrid"), [ProcessBox("anna"), ProcessBox("berta")]
    with Session(tiny_resnet, resolve_devices(fast_slow, None)) as session, Pool(boxes, LocalHost) as pool:
        watcher = Watcher(on_note=notes.append)
        found = boxes_for(session, chosen, pool, watcher, DescribeApart)
        killing = threading.Timer(8.0, boxes[0].kill)
        killing.start()
        search = search_placements(session, chosen, watcher=watcher, pool=pool, boxes=found)
        killing.cancel()
    measured = [event for event in search.recorder.events if event.plan.is_split]
    assert found is not None
    assert {event.score.box for event in measured} >= {found.here}  # the others, where they are ready before the end
    assert len({event.plan for event in search.recorder.events}) == len(search.recorder.events)
    assert all(search.problem.is_legal(plan.placement) for plan in search.finalists)
    assert search.finalists
