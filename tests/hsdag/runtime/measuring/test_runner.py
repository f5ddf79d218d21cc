"""What a runner asks its worker for, and what it makes of the answers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed, WorkerClient
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.runtime.measuring.messages import Call, Candidate
from hsdag.runtime.measuring.runner import CandidateRunner, WorkerLimits, unsupported_ops, with_hint
from hsdag.runtime.objectives import ENERGY, LATENCY, MEMORY, THROUGHPUT, Objective, find_objective

PERIOD_S, LATENCY_S, PEAK_BYTES = 0.25, [0.5, 1.5], 6.0
STEPS = Scenario(({"x": (1,)}, {"x": (1,)})), Scenario(({"x": (1,)},))


class Client:
    """Answers every request at once, and keeps the requests; a lost one starts again with its next call."""

    def __init__(self) -> None:
        self.num_starts, self.is_running, self.asked = 1, True, list[Call[Any]]()
        self.limits = list[tuple[float, ...]]()

    def call(self, request: Call[Any], *limits: float) -> object:
        if not self.is_running:
            self.num_starts, self.is_running = self.num_starts + 1, True
        self.asked.append(request)
        self.limits.append(limits)
        answers = {"throughput": PERIOD_S, "run": LATENCY_S, "choices": ["CPU", "", "CPU"], "difference": {"mse": 0.0}}
        return answers.get(request.name)


def runner_of(objective: Objective, requests: int | None = None) -> tuple[CandidateRunner, Client]:
    client = Client()
    runner = CandidateRunner(cast("WorkerClient", client), objective, WorkerLimits(run_s=10.0), requests=requests)
    runner.open("a", Candidate("CPU"))
    return runner, client


@pytest.mark.parametrize("requests", [None, 6])
def test_a_period_is_one_figure_over_all_runs_for_a_short_time(requests: int | None) -> None:
    runner, client = runner_of(THROUGHPUT, requests)
    assert runner.run("a", 3) == [PERIOD_S]
    assert client.asked[-1].args == ("a", requests, 3, 0.15)


@pytest.mark.parametrize(
    ("run_s", "scenarios", "stop_s"), [(10.0, (), 5.0), (10.0, STEPS[:1], 1.0), (1.0, STEPS[:1], 0.5)]
)
def test_a_latency_is_a_figure_for_each_run_within_half_the_limit_or_a_second_where_others_run_untimed(
    run_s: float, scenarios: tuple[Scenario, ...], stop_s: float
) -> None:
    client = Client()
    runner = CandidateRunner(cast("WorkerClient", client), LATENCY, WorkerLimits(run_s=run_s), scenarios)
    runner.open("a", Candidate("CPU"))
    assert runner.run("a", 2) == LATENCY_S
    assert client.asked[-1].args == ("a", 2, stop_s, None)
    assert client.asked[0].args[2] == 0.4 * run_s
    plain = CandidateRunner(cast("WorkerClient", client), LATENCY, scenarios=STEPS[1:])
    assert (plain.limits, plain.taken.value_s) == (WorkerLimits(), 0.0)


def test_scenarios_take_turns_and_each_has_a_median_beside_the_weighted_mean() -> None:
    runner, client = runner_of(LATENCY)
    runner.scenarios = replace(STEPS[0], weight=3.0), STEPS[1]
    each_s = iter([1.0, 5.0, 3.0, 7.0, 2.0, 6.0])
    client.call = lambda *_: [next(each_s)]  # type: ignore[method-assign]
    assert runner.run("a", 3) == [2.0, 4.0, 3.0]  # three quarters of the first
    assert runner.taken.scenario_medians_s("a", 3) == (2.0, 6.0)
    assert runner.taken.scenario_medians_s("a", 2) == (2.5, 6.5)  # of the last two
    assert runner.taken.scenario_medians_s("b", 3) == ()


def test_a_value_takes_the_median_of_what_those_of_a_call_took(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0.0, 2.0, 10.0, 16.0, 20.0, 100.0])
    runner, _ = runner_of(LATENCY)
    monkeypatch.setattr("hsdag.runtime.measuring.runner.time.monotonic", lambda: next(readings))
    for _ in range(3):
        runner.run("a", 2)
    assert runner.taken.value_s == 3.0  # of 1, 3 and 40


def test_energy_is_counted_over_whole_turns_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of two inferences takes 0.0625 s and 3 J."""
    turns = 0

    def lasts(*_: object) -> list[float]:
        nonlocal turns
        turns += 1
        return LATENCY_S

    counters = SimpleNamespace(counts=lambda: turns, joules_since=lambda before: 3.0 * (turns - before))
    monkeypatch.setattr("hsdag.runtime.measuring.runner.EnergyCounters.find", lambda: counters)
    monkeypatch.setattr("hsdag.runtime.measuring.runner.time.perf_counter", lambda: 100.0 + 0.0625 * turns)
    runner, _ = runner_of(ENERGY)
    monkeypatch.setattr(runner, "run_scenario", lasts)
    for runs, expected in ((1, 2), (4, 2), (5, 3)):
        turns = 0
        assert (runner.run("a", runs), turns) == ([1.5], expected)
    counters.joules_since = lambda _: 0.0
    with pytest.raises(CandidateFailed, match="no energy counter has moved over 4 inferences"):
        runner.run("a", 1)


def test_ops_that_a_device_lacks_are_told_and_a_distance_has_four_times_the_limit() -> None:
    runner, client = runner_of(LATENCY)
    assert unsupported_ops(runner.client, DeviceSpec("CPU", "CPU")).tolist() == [1]
    runner.open("b", Candidate("CPU"))
    assert runner.difference("a", "b") == {"mse": 0.0}
    assert (client.asked[-1].args, client.limits[-1]) == (("a", "b"), (40.0,))
    assert [client.limits[k][1] for k in (0, 2)] == [COMPILING_LIMIT_S] * 2
    runner.open("split", Candidate("HETERO:A,B", ("A", "B")))
    assert client.limits[-1][1] == 0.0


def test_a_weighted_sum_has_each_latency_with_the_one_period() -> None:
    runner, client = runner_of(find_objective("latency=1,throughput=3").scaled(lambda _: 1.0))
    assert runner.run("a", 2) == pytest.approx([(each + 3 * PERIOD_S) / 4 for each in LATENCY_S])
    assert [request.name for request in client.asked] == ["open", "run", "throughput"]


def test_peaks_are_those_that_are_simulated() -> None:
    runner, _ = runner_of(MEMORY)
    with pytest.raises(CandidateFailed, match="peak of memory is not known"):
        runner.run("a", 1)
    runner.peak_of = lambda _: PEAK_BYTES
    assert runner.run("a", 1) == [PEAK_BYTES]


def test_a_candidate_is_opened_again_in_a_worker_that_has_started_again() -> None:
    runner, client = runner_of(LATENCY)
    client.is_running = False
    runner.run("a", 1)
    assert [request.name for request in client.asked] == ["open", "open", "run"]
    with pytest.raises(CandidateFailed, match="'b' was never opened"):
        runner.run("b", 1)


def test_a_worker_that_is_lost_while_it_forgets_a_candidate_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise CandidateFailed("took more than 1 s")

    runner, client = runner_of(LATENCY)
    with monkeypatch.context() as patch:
        patch.setattr(client, "call", lose)
        runner.close("a")
    runner.open("a", Candidate("CPU"))
    runner.close("a")
    assert [request.name for request in client.asked] == ["open", "open", "close"]


def test_only_periods_have_a_hint_of_their_own() -> None:
    hint, ours = {"PERFORMANCE_HINT": "THROUGHPUT"}, Candidate("CPU", executor="work-conserving")
    given = Candidate("CPU"), Candidate("CPU", properties={"PERFORMANCE_HINT": None}), ours
    assert [runner_of(THROUGHPUT)[0].hinted(each).properties for each in given] == [hint, {}, {}]
    assert runner_of(LATENCY)[0].hinted(given[0]).properties == {}


def test_where_the_cpu_plugin_crashes_over_a_model_it_is_said_how_to_have_it_generate_no_kernels() -> None:
    lost, late = (CandidateFailed("ended", lost_worker=True, is_late=is_late) for is_late in (False, True))
    cpu, gpu = DeviceSpec("A", "CPU"), DeviceSpec("GPU", "GPU")
    assert with_hint(lost, cpu).endswith("give CPU devices SNIPPETS_MODE=DISABLE")
    divided = CandidateFailed("was ended by SIGFPE", lost_worker=True)
    assert with_hint(divided, cpu) == divided.reason
    others = (late, cpu), (CandidateFailed("ended"), cpu), (lost, gpu)
    assert [with_hint(failure, spec) for failure, spec in others] == ["ended"] * 3
