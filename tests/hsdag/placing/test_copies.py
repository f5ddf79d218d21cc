"""Copies in a search for throughput: which sets of devices are compared, and what their answer is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.placing.copies import best_sets, proposed_copies
from hsdag.placing.final import check_of, final_comparison
from hsdag.placing.place import Outcome, automatic_candidates, plans_of
from hsdag.placing.searching import Search
from hsdag.placing.session import Session, placed_candidate
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.scoring.schedule import model_values
from hsdag.search.options import PlaceOptions

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")


def test_the_best_sets_have_the_largest_sums_of_rates_under_contention() -> None:
    whole_s = np.array([1.0, 2.0, 4.0])
    all_of_them, without_slowest = best_sets([0, 1, 2], whole_s, None)
    assert all_of_them.devices == (0, 1, 2)
    assert all_of_them.period_s == pytest.approx(1 / (1 + 1 / 2 + 1 / 4))
    assert without_slowest.devices == (0, 1)
    assert without_slowest.period_s == pytest.approx(1 / 1.5)
    slowdown = np.ones((3, 3))
    slowdown[0, 2], slowdown[1, 2] = 2.0, 1.5  # what the third device takes from the others is more than it adds
    first, second = best_sets([0, 1, 2], whole_s, slowdown)
    assert first.devices == (0, 1)
    assert second.devices == (0, 1, 2)
    assert second.period_s == pytest.approx(1 / (1 / 2 + 1 / 3 + 1 / 4))
    assert [each.devices for each in best_sets([0, 2], whole_s, None)] == [(0, 2)]


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 1),
        ({"objective": LATENCY}, 0),
        ({"executor": "hetero"}, 0),
        ({"memory_bytes": {"A": 1.0}}, 0),
    ],
    ids=str,
)
def test_copies_are_proposed_for_throughput_where_devices_hold_them(
    tiny_bert: Path, changes: dict[str, Any], count: int
) -> None:
    options = PlaceOptions(**{"devices": DEVICES, "objective": THROUGHPUT, **changes})
    memory = dict(options.memory_bytes)
    with Session(tiny_bert, resolve_devices(DEVICES, None), executor="work-conserving", memory_bytes=memory) as session:
        assert len(proposed_copies(session, options, None)) == count


def test_copies_win_where_nothing_else_runs_and_are_written(tiny_bert: Path) -> None:
    devices = resolve_devices(DEVICES, None)
    options = PlaceOptions(devices=DEVICES, objective=THROUGHPUT, reward="measured")
    with Session(tiny_bert, devices, objective=THROUGHPUT, executor="work-conserving") as session:
        search = Search(session, options)
        search.prepare()
        (name, copies) = next(iter(search.copies.items()))
        assert automatic_candidates(session)["AUTO:CPU"].properties == {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}
        protocol = Protocol(limit_s=2.0, min_rounds=2)
        candidate = copies.candidate(session)
        rng = np.random.default_rng(0)
        final = final_comparison(
            session.runner, {name: candidate}, {}, {}, protocol, check_of(session, options), rng=rng
        )
        assert final.answer == name
        assert final.opened[name].requests
        outcome = Outcome(search, final, {}, [name], 0.25)
        assert outcome.warnings()[-1].startswith("other programs took 25% of the processors during the comparison")
        assert Outcome(search, final, {}, [name], 0.2499).warnings() == ()
        placement = outcome.placement()
        assert outcome.weight_bytes() == dict.fromkeys("AB", float(session.graph.weight_bytes.sum()))
        assert outcome.rows()[0].ops == dict.fromkeys("AB", session.graph.num_ops)
        assert placed_candidate(session, "again", placement, "work-conserving").copies == tuple(
            zip(["CPU_A", "CPU_B"], final.opened[name].requests, strict=True)
        )
    assert (placement.method, placement.executor, placement.affinity) == ("copies", "work-conserving", {})
    assert [copy.requests for copy in placement.copies or ()] == list(final.opened[name].requests)


def test_auto_looks_for_the_placement_that_suits_hetero_best_among_all_that_were_tried(tiny_resnet: Path) -> None:
    options = PlaceOptions(devices=DEVICES, budget_s=8.0, method="sa", max_evaluations=6)
    with Session(tiny_resnet, resolve_devices(DEVICES, None), executor="work-conserving") as session:
        search = Search(session, options)
        search.run()
        assert search.profile is not None
        assert search.under_hetero is not None
        tried = [*search.finalists, *(event.plan for event in search.events if event.plan.is_split)]
        costs = session.model.costs(search.profile, "hetero")
        values = model_values(search.problem, costs, [search.under_hetero, *tried])
        assert values[0] == values[1:].min()
        assert plans_of(search)[f"placement {len(plans_of(search))}"] in (search.under_hetero, search.finalists[-1])
