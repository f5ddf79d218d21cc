"""The race for settings: who wins, who is dropped, and what it takes, on a clock that counts inferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from hsdag.base.processes import CandidateFailed
from hsdag.runtime.machine.settings import Setting
from hsdag.runtime.measuring.latency import LatencyComparison, Protocol, measure_in_rounds
from hsdag.runtime.measuring.settings import PROTOCOL, Raced, race

STAGES = ([{"precision": "f32"}, {"precision": "f16"}], [{"threads": "1"}], [{"pinning": "NO"}])


@pytest.fixture(scope="module", autouse=True)
def comparisons_are_short() -> None:
    """They are as long as users have them."""


class Machine:
    """Settings multiply the seconds of an inference; opening one takes a tenth of a second."""

    def __init__(self, factors: Mapping[str, float], seconds: float = 1e-3, noise: float = 0.01) -> None:
        self.factors, self.seconds, self.noise = factors, seconds, noise
        self.rng = np.random.default_rng(0)
        self.now_s = 0.0
        self.turns = Counter[str]()

    def compare(
        self, settings: Mapping[str, Setting], limit_s: float, protocol: Protocol = PROTOCOL
    ) -> LatencyComparison:
        """In common rounds, as a search does."""

        def prepare(name: str) -> None:
            self.now_s += 0.1
            if "refused" in name:
                raise CandidateFailed("refused")

        def run(name: str, runs: int) -> list[float]:
            self.turns[name] += 1
            each = [self.factors.get(f"{key}={value}", 1.0) for key, value in settings[name].items()]
            taken = self.seconds * np.prod(each) * np.exp(self.noise * self.rng.standard_normal(runs))
            self.now_s += float(np.sum(taken))
            return [float(s) for s in taken]

        protocol = Protocol(**{**vars(protocol), "limit_s": limit_s})
        names = list(settings)
        how = {"prepare": prepare, "num_sure": 2, "clock": lambda: self.now_s}
        return measure_in_rounds(run, names, names, protocol, self.rng, **how)  # type: ignore[arg-type]

    def raced(self, stages: object = STAGES, limit_s: float = 10.0) -> Raced:
        """A race on the clock of this machine."""
        return race(stages, self.compare, limit_s, lambda: self.now_s)  # type: ignore[arg-type]


def test_the_best_of_every_stage_is_kept_on_top_of_the_best_before() -> None:
    machine = Machine({"precision=f32": 0.7, "precision=f16": 0.9, "threads=1": 2.0, "pinning=NO": 0.8})
    found = machine.raced()
    assert found.setting == {"precision": "f32", "pinning": "NO"}
    assert found.is_decided
    ratios = [each.ratio.value for each in found.tried if each.ratio is not None]
    assert ratios == pytest.approx([1 / 0.7, 1 / 0.9, 1 / 2.0, 1 / 0.8], rel=0.02)


def test_the_default_stays_where_nothing_beats_it() -> None:
    """Each of three settings that are as fast wins by chance in one race of forty."""
    changed = 0
    for seed in range(40):
        machine = Machine({"threads=1": 1.5}, noise=0.3)
        machine.rng = np.random.default_rng(seed)
        changed += machine.raced(limit_s=2.0).setting != {}
    assert changed <= 6


def test_losers_are_dropped_after_a_few_rounds() -> None:
    machine = Machine({"precision=f16": 3.0, "precision=f32": 0.99}, noise=0.1)
    machine.raced(STAGES[:1])
    assert 2 * machine.turns["precision=f16"] < machine.turns["precision=f32"]


def test_a_race_keeps_its_time_and_says_what_it_has_not_decided() -> None:
    machine = Machine({"precision=f32": 0.5}, seconds=0.05)
    found = machine.raced(limit_s=2.0)
    assert machine.now_s < 2.5
    assert found.setting == {"precision": "f32"}
    assert not found.is_decided


def test_a_stage_for_which_too_little_time_is_left_is_not_begun() -> None:
    machine = Machine({"pinning=NO": 0.5})
    found = race(STAGES[1:], machine.compare, 1.0, lambda: machine.now_s, least_s=0.9)
    assert [each.setting for each in found.tried] == STAGES[1]
    assert (found.setting, found.is_decided) == ({}, False)


def test_noise_is_no_decision() -> None:
    assert not Machine({}, noise=1.0).raced().is_decided


def test_settings_that_a_device_refuses_are_told_and_the_others_go_on() -> None:
    machine = Machine({"threads=1": 0.5})
    found = machine.raced(([{"precision": "refused"}], *STAGES[1:]))
    assert found.setting == {"threads": "1"}
    assert found.tried[0].failure == "refused"


def test_where_the_default_is_not_allowed_the_fastest_other_setting_takes_its_place() -> None:
    machine = Machine({"precision=f32": 3.0, "precision=f16": 2.0})
    refuse = lambda settings, s: machine.compare(dict(list(settings.items())[1:]), s)  # noqa: E731
    assert race(STAGES[:1], refuse, 10.0, lambda: machine.now_s).setting == {"precision": "f16"}
