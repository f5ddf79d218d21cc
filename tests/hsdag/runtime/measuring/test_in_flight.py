"""Throughput is that of a pipeline that is full."""

from __future__ import annotations

import pytest

from hsdag.runtime.measuring import inferences as measured_by


class Machine:
    """Requests in virtual time, on one device that runs them in turn; each inference takes what ``duration_s`` says."""

    def __init__(self, duration_s: list[float]) -> None:
        self.duration_s, self.now_s, self.free_s, self.num_started, self.num_running = duration_s, 0.0, 0.0, 0, 0
        self.running_when_waited = set[int]()

    def perf_counter(self) -> float:
        return self.now_s


class Request:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.end_s, self.is_running = machine, 0.0, False

    def start_async(self) -> None:
        assert not self.is_running
        machine, self.is_running = self.machine, True
        machine.free_s = self.end_s = max(machine.free_s, machine.now_s) + machine.duration_s[machine.num_started]
        machine.num_started += 1
        machine.num_running += 1

    def wait(self) -> None:
        assert self.is_running
        machine, self.is_running = self.machine, False
        machine.now_s = max(machine.now_s, self.end_s)
        machine.running_when_waited.add(machine.num_running)
        machine.num_running -= 1


def measured(patch: pytest.MonkeyPatch, duration_s: list[float], count: int, inferences: int) -> tuple[float, Machine]:
    machine = Machine(duration_s)
    patch.setattr(measured_by, "time", machine)
    return measured_by.steady_period_s([Request(machine) for _ in range(count)], inferences), machine


def test_inferences_that_fill_and_empty_the_pipeline_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    duration_s = [9.0] * 3 + [2.0] * 6 + [7.0] * 3
    assert measured(monkeypatch, duration_s, 3, 6)[0] == 2.0


def test_all_requests_are_in_flight_until_the_last_one_counted_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _, machine = measured(monkeypatch, [1.0] * 30, 4, 20)
    assert machine.num_started == 28
    assert machine.running_when_waited == {4, 3, 2, 1}
    assert machine.num_running == 0
