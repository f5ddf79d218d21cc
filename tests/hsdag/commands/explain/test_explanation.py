"""Explanations in words and as JSON: what is measured, what is simulated, and what is not known."""

from __future__ import annotations

import dataclasses

import pytest

from hsdag.commands.explain.explanation import (
    Difference,
    Explanation,
    Gain,
    Limit,
    Prediction,
    ReportedBound,
    Rival,
    Shared,
)

FOUND = Explanation(
    model="m",
    executor="hetero",
    objective="latency",
    ops={"A": 3, "B": 2, "C": 0},
    value=Prediction(simulated=0.009, measured=0.010, calibrated=False),
    gains=(Gain("conv", "Convolution", ("conv", "relu"), "A", "B", 0.012, 0.003),),
    limits=(Limit("A", "work", 0.006, 0.6), Limit("", "transfers", 0.002, 0.2), Limit("", "launches", 1e-5, 0.001)),
    next_best=Rival("placement 2", True, 1.25, (1.2, 1.3), 0.0125, (Difference("conv", "Convolution", "A", "B"),), 2),
    bound=ReportedBound(0.0081, "the minimum cut", 0.1),
)


def said(found: Explanation) -> str:
    return "\n".join(found.sentences)


def test_simulated_figures_are_called_so_and_measured_ones_have_their_interval() -> None:
    text = said(FOUND)
    assert "3 ops on A and 2 ops on B: 10 ms measured; 9 ms simulated, 0.90 times what was measured." in text
    assert "Moving conv from A to B would cost most: 3 ms, 33.3% (simulated)." in text
    assert "Less to send: if transfers took no time, it would gain at most 20.0% (simulated)" in text
    assert "no time for its work" not in text
    assert "free launches" not in text  # which would gain less than 1%
    assert "placement 2, takes 1.250 times as long (measured, 95% interval 1.200 to 1.300); 2 ops differ: conv" in text
    assert all("simulated" in line for line in FOUND.sentences if "would" in line)
    assert FOUND.model_dump(mode="json", by_alias=True)["value"]["simulated_over_measured"] == pytest.approx(0.9)
    places = [text.index(words) for words in ("Less to send", "next best plan", "proven by", "Moving")]
    assert places == sorted(places)  # what a user can change comes first
    least = (
        "No placement takes less than 0.900 of this one's time under these costs (simulated), proven by the minimum cut"
    )
    assert f"{least}: at most 10.0% is left to gain" in text
    assert "could be is not known" in said(FOUND.model_copy(update={"bound": None}))
    warned = FOUND.model_copy(update={"answer": ("Run it.", "It is faster.", "Warning: it is warm.")})
    assert "proven by" in said(warned)
    assert "proven by" not in said(warned.model_copy(update={"left": "At most 4% could be gained."}))
    whole = {"ops": {"A": 5}, "limits": (Limit("", "launches", 1.0, 1.0),)}
    assert "Fewer pieces" not in said(FOUND.model_copy(update=whole))


def test_where_no_split_won_the_nearest_one_is_named_with_what_it_loses() -> None:
    split = Rival("placement 1", True, 1.07, None, 0.0107, (), 2)
    text = said(FOUND.model_copy(update={"ops": {"A": 5, "B": 0}, "best_split": split, "next_best": split}))
    assert "No split won: the nearest one, placement 1, takes 1.070 times as long" in text
    assert "No split won" not in said(
        FOUND.model_copy(update={"best_split": split, "answer": ("No placement beat A.",)})
    )
    assert "without an interval" in text
    assert "next best" not in text
    even = dataclasses.replace(split, ratio=1.0)
    assert "No split won" in said(FOUND.model_copy(update={"ops": {"A": 5, "B": 0}, "best_split": even}))
    near = dataclasses.replace(split, ratio=0.8)
    text = said(FOUND.model_copy(update={"ops": {"A": 5, "B": 0}, "best_split": near, "next_best": near}))
    assert "No split was shown to be faster; one of them, placement 1, takes 0.800 times as long" in text


def test_a_move_that_the_costs_would_rather_have_is_no_gain() -> None:
    wish = Gain("pool", "MaxPool", ("pool",), "B", "A", 0.0085, -0.0005)
    slight = dataclasses.replace(wish, gain=-8e-5)  # less than 1% of the time
    assert "By the costs" not in said(FOUND.model_copy(update={"gains": (*FOUND.gains, slight)}))
    text = said(FOUND.model_copy(update={"gains": (*FOUND.gains, wish)}))
    assert "Moving conv" in text
    assert "By the costs, pool would be better on A, by 0.5 ms (simulated)" in text


def test_tables_are_in_milliseconds_and_per_cent_and_regions_are_told_whole_and_divided() -> None:
    region = Shared("rows", "a", "b", 3, {"A": 0.75, "B": 0.25}, 0.004, 0.003)
    found = FOUND.model_copy(update={"regions": (region, dataclasses.replace(region, whole_s=None, divided_s=None))})
    regions, gains, limits = (rows for _, _, rows in found.tables(2))
    assert regions == [["a", "b", "rows", "3", "A:75% B:25%", *ends] for ends in ("43", "--")]
    assert gains == [["conv", "Convolution", "A", "B", "12", "+3"]]
    assert limits == [["work A", "6", "60.0"], ["transfers", "2", "20.0"], ["launches", "0.01", "0.1"]]
    assert found.sentences[1:] == (
        "6 ops in 2 regions are divided.",
        "Whole, these regions take 4 ms on the quickest device, and divided 3 ms (simulated, without syncs).",
    )
