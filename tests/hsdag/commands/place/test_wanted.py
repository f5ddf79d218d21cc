"""The budget that a search advises: one figure for all that there was no time for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsdag.commands.place.comparison import NO_TIME, Candidates
from hsdag.commands.place.outcome import Outcome
from hsdag.commands.place.wanted import Wanted
from hsdag.runtime.measuring.latency import LatencyComparison, Ratio
from hsdag.runtime.measuring.messages import Candidate
from hsdag.search.options import PlaceOptions


def test_the_figure_is_enough_for_all_that_was_left_out() -> None:
    wanted = Wanted(40.0)
    assert (wanted.seconds, wanted.words) == (None, "")
    wanted.add("measure 10 placements", 81.0)
    wanted.add("try settings of CPU", 50.0)
    wanted.add("measure 10 placements", 60.0)
    assert wanted.seconds == 90.0
    assert wanted.words == "With budget 90s there is time to measure 10 placements and to try settings of CPU."
    wanted.add("compile shards 1")  # nobody knows what that takes
    wanted.add("tell shards 1 from CPU", 242.0)
    assert wanted.seconds == 250.0
    assert wanted.words.startswith("With budget 250s there is time to measure 10 placements, to try settings of CPU, ")


def test_it_is_never_less_than_what_was_spent() -> None:
    wanted = Wanted(60.0)
    wanted.add("measure 10 placements", 20.0)
    assert wanted.seconds == 70.0


@pytest.mark.parametrize(
    ("ratio", "seconds"),
    [
        (Ratio(1.3, 1.2, 1.4, 3), 80.0),  # six rounds are needed
        (Ratio(1.2, 0.84, 1.85, 10), 190.0),  # 40 s times (ln(1.85 / 0.84) / 2 / ln 1.2)^2
        (Ratio(1.001, 0.84, 1.85, 20), None),  # too close to tell
        (Ratio(0.8, 0.7, 0.9, 20), None),
        (Ratio(1.0, 1.0, 1.0, 6), None),  # simulated values are the same in every round
    ],
)
def test_more_rounds_are_wanted_where_they_would_tell_candidates_apart(ratio: Ratio, seconds: float | None) -> None:
    session = SimpleNamespace(devices=SimpleNamespace(placed=["A", "B"]))
    search: Any = SimpleNamespace(options=PlaceOptions(budget_s=40.0), wanted=Wanted(40.0), session=session)
    candidates = Candidates({"shards 1": Candidate("CPU")}, {})
    known = {"best_single": "CPU", "answer": "CPU", "candidates": candidates, "ratios": {"shards 1": ratio}}
    final: Any = SimpleNamespace(comparison=LatencyComparison({}, {}), verdicts={}, whole_devices=(), **known)
    assert Outcome(search, final).wanted().seconds == seconds
    late: Any = SimpleNamespace(**vars(final) | {"comparison": LatencyComparison({}, {"shards 1": NO_TIME})})
    assert "compile shards 1" in Outcome(search, late).wanted().words
