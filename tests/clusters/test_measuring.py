"""A search whose placements are measured on the nodes of a real Ray cluster, one of which is killed meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from hsdag.evaluators.recording import Event, RecordingEvaluator
from hsdag.fleet.cluster import Cluster
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Pool
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.search.driver import Watcher
from hsdag.search.measuring import boxes_for
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import search_placements
from hsdag.search.session import Session
from tests.clusters.local_cluster import LocalCluster
from tests.hsdag.boxes.machines import DescribeApart

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow
NUM = 14


def test_nodes_measure_until_one_is_killed_and_nothing_is_lost_or_counted_twice(
    tiny_resnet: Path, fast_slow: str
) -> None:
    options = PlaceOptions(method="random", reward="measured", budget_s=240.0, max_evaluations=NUM)
    notes: list[str] = []
    with LocalCluster() as cluster, Session(tiny_resnet, resolve_devices(fast_slow, None)) as session:

        def kill_after_six(_: Event, recorder: RecordingEvaluator) -> None:
            if recorder.num_evaluations == 6:
                threading.Thread(target=cluster.kill, args=(2,)).start()

        workers, watcher = Cluster(cluster.address), Watcher(on_note=notes.append, on_event=kill_after_six)
        with Pool(workers.hosts, LocalHost, on_close=workers.close) as pool:
            assert boxes_for(session, options, pool, watcher) is None  # all of them are this machine
            boxes = boxes_for(session, options, pool, watcher, DescribeApart)
            assert boxes is not None
            num_boxes = len(boxes.hosts)
            found = search_placements(session, options, watcher=watcher, pool=pool, boxes=boxes)
    events = found.recorder.events
    assert num_boxes == 3
    assert any(" is lost (" in note or " measures no more (" in note for note in notes), notes
    assert len({event.plan for event in events}) == len(events) == NUM
    assert all(event.score.failure is None for event in events)
    counts = Counter(event.score.box for event in events)
    assert len(counts) == 4, notes
    assert set(counts) >= {boxes.here, *(host.name for host in boxes.hosts)}
