"""The final comparison: what is called faster, what is left out, and what the answer has to pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.errors import SearchError
from hsdag.base.processes import WorkerClient
from hsdag.commands.place.comparison import (
    NO_TIME,
    Candidates,
    FinalComparison,
    TimeLimits,
    family_ratios,
    final_comparison,
)
from hsdag.commands.place.records import Verdict
from hsdag.commands.place.verifying import Check, Verifier
from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.runtime.measuring.latency import LatencyComparison, Protocol, Samples
from hsdag.runtime.measuring.messages import Candidate, WorkerSetup, worker_client
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY
from hsdag.search.driver import Watcher

WHOLE = Candidate("CPU")
SPECS = parse_devices(",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB"))
PINNED = {"CPU": "a pin"}
BROKEN, FULL = {"BROKEN": Candidate("NO_SUCH_DEVICE")}, Check(reduced="")


@pytest.fixture(scope="module")
def comparisons_are_short() -> None:
    """Not here: how long they are is what a test is about."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    """Of a worker for a model of five ops."""
    path = tmp_path_factory.mktemp("final") / "joined.xml"
    x = opset13.parameter([2, 8], np.float32, name="x")
    both = opset13.concat([opset13.tanh(x, name="left"), opset13.sin(x, name="right")], 0, name="both")
    ov.serialize(ov.Model([opset13.result(opset13.exp(both, name="last"))], [x], "joined"), path)
    with worker_client(WorkerSetup(path, SPECS)) as client:
        yield client


def test_the_more_finalists_ran_the_wider_their_intervals_are() -> None:
    rng = np.random.default_rng(0)
    names = ["CPU", "A", "B", "C"]
    found = LatencyComparison({name: Samples(tuple((s,) for s in rng.uniform(1, 2, 8))) for name in names}, {})
    assert family_ratios(found, ["A", "B", "never ran"], "CPU") == {n: found.ratio(n, "CPU", 2) for n in ("A", "B")}
    assert family_ratios(found, names[1:], "CPU")["A"].low < found.ratio("A", "CPU", 2).low


def compared(
    client: WorkerClient,
    finalists: list[str],
    limit_s: float,
    compile_s: float,
    opening_s: float = 0.0,
    after_s: float = 0.0,
    disallowed: Mapping[str, str] | None = None,
    **slow: bool,
) -> tuple[FinalComparison, float]:
    """A comparison by a clock on which every compilation takes ``compile_s`` and nothing else takes time."""
    now_s = 0.0

    def on_step(step: str) -> None:
        nonlocal now_s
        now_s += compile_s * step.startswith("preparing")

    result = final_comparison(
        CandidateRunner(client, LATENCY),
        Candidates(
            dict.fromkeys(finalists, WHOLE),
            {"CPU": WHOLE, **dict.fromkeys(slow, WHOLE)},
            {"AUTO:CPU": Candidate("AUTO:CPU"), "HETERO:placement 1": WHOLE},
            disallowed=disallowed or {},
            slow=[name for name, is_known in slow.items() if is_known],
        ),
        TimeLimits(
            Protocol(min_rounds=2, max_rounds=2, turn_s=0.001, limit_s=limit_s),
            end_s=time.monotonic() + 1e3,
            after_s=after_s,
            opening_s=lambda _: opening_s,
            clock=lambda: now_s,
        ),
        Check(reduced="bf16"),
        rng=np.random.default_rng(0),
        watcher=Watcher(on_step=on_step),
    )
    return result, now_s


@pytest.mark.parametrize(
    ("num", "limit_s", "compile_s", "ran"),
    [
        (3, 9.75, 3.0, {"placement 1", "AUTO:CPU"}),
        (2, 6.0, 3.0, {"placement 1"}),
        (2, 6.0, 20.0, {"placement 1"}),
        (2, 60.0, 3.0, {"placement 1", "placement 2", "AUTO:CPU", "HETERO:placement 1"}),
    ],
)
def test_rivals_for_which_there_is_no_time_are_dropped_before_they_are_compiled(
    client: WorkerClient, num: int, limit_s: float, compile_s: float, ran: set[str]
) -> None:
    finalists = [f"placement {rank + 1}" for rank in range(num)]
    result, took_s = compared(client, finalists, limit_s, compile_s)
    comparison = result.comparison
    assert set(comparison.samples) == {"CPU", *ran}
    assert not comparison.failures
    assert took_s == compile_s * len(comparison.samples)
    assert {len(each.rounds) for each in comparison.samples.values()} == {2}


@pytest.mark.parametrize(("opening_s", "after_s"), [(2e3, 0.0), (8e2, 3e2)])
def test_a_finalist_that_would_leave_no_time_for_what_follows_is_not_compiled(
    client: WorkerClient, opening_s: float, after_s: float
) -> None:
    """Of 1000 s."""
    comparison = compared(client, ["placement 1"], 60.0, 1.0, opening_s, after_s)[0].comparison
    assert comparison.failures == {"placement 1": NO_TIME}
    assert "CPU" in comparison.samples


def test_a_finalist_has_to_beat_a_device_that_may_be_the_answer(client: WorkerClient) -> None:
    found, _ = compared(client, ["placement 1"], 6.0, 3.0, disallowed=PINNED, A=True)
    assert {"A", "placement 1"} <= set(found.comparison.samples)


def test_a_finalist_is_never_left_out_for_a_device_that_may_not_be_the_answer(client: WorkerClient) -> None:
    found, _ = compared(client, ["placement 1"], 60.0, 0.0, after_s=1e4, disallowed=PINNED)
    assert found.answer == "placement 1"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_device_is_always_compared_unless_it_is_known_to_be_slow(client: WorkerClient, is_known: bool) -> None:
    comparison = compared(client, ["placement 1"], 6.0, 3.0, SLOW=is_known)[0].comparison
    assert ("SLOW" in comparison.samples) is not is_known


def test_a_placement_whose_ops_all_run_on_one_device_is_compared_as_no_split(client: WorkerClient) -> None:
    assert isinstance(client.setup, WorkerSetup)
    names = read_graph(client.setup.model).op_names
    copied = Candidate.side_by_side(["CPU_B" if name == "both" else "CPU_A" for name in names], ["CPU_A", "CPU_B"])
    result = alone(client, {"placement 1": copied}, {"A": Candidate("CPU_A")})
    assert set(result.opened) == set(result.comparison.samples) == {"A"}
    assert result.comparison.failures == {"placement 1": "all of it runs on CPU_A, so it is not a split"}


def alone(
    client: WorkerClient,
    finalists: Mapping[str, Candidate],
    singles: Mapping[str, Candidate] = BROKEN,
    check: Check = FULL,
    **more: Any,
) -> FinalComparison:
    """A comparison with a device that does not exist, or with other ones."""
    limits, runner = TimeLimits(Protocol(min_rounds=4, max_rounds=6, turn_s=0.001)), CandidateRunner(client, LATENCY)
    candidates = Candidates(finalists, singles, **more)
    return final_comparison(runner, candidates, limits, check, rng=np.random.default_rng(0))


def test_where_no_device_runs_the_model_alone_a_placement_that_does_and_computes_the_same_is_the_answer(
    client: WorkerClient,
) -> None:
    assert isinstance(client.setup, WorkerSetup)
    names = read_graph(client.setup.model).op_names
    split = Candidate.placed([("CPU_A", "CPU_B")[name in ("both", "last", "right")] for name in names])
    result = alone(client, {"placement 1": split})
    assert (result.best_single, result.answer) == (None, "placement 1")
    assert "BROKEN" in result.comparison.failures
    with pytest.raises(SearchError, match="outputs differ"):
        alone(client, {"placement 1": split}, check=Check(reduced="", max_difference=-1.0))
    with pytest.raises(SearchError, match="no candidate ran; BROKEN: "):
        alone(client, {})


class Timed(CandidateRunner):
    """Runs candidates, and says that they took given seconds."""

    seconds: Mapping[str, float] = {}

    def run(self, key: str, runs: int) -> list[float]:
        super().run(key, 1)
        return [self.seconds[key]] * runs


@pytest.mark.parametrize(
    ("times_ms", "given", "answer", "best_single"),
    [
        ({"placement 1": 2.0, "start": 1.0, "CPU": 3.0}, {}, "start", "CPU"),
        ({"placement 1": 2.0, "start": 1.0, "CPU": 3.0}, {"disallowed": {"start": "a pin"}}, "placement 1", "CPU"),
        ({"placement 1": 1.0, "start": 2.0, "CPU": 3.0}, {}, "placement 1", "CPU"),
        ({"placement 1": 2.0, "start": 2.0, "CPU": 3.0}, {}, "start", "CPU"),
        ({"placement 1": 9.0, "start": 9.0, "CPU": 3.0}, {}, "CPU", "CPU"),
        ({"placement 1": 9.0, "start": 3.0, "CPU": 3.0}, {}, "CPU", "CPU"),
        ({"placement 1": 4.0, "start": 5.0, "CPU": 3.0}, {}, "CPU", "CPU"),  # faster than a start that is too slow
        ({"placement 1": 2.0, "A": 3.0, "B": 1.0}, {"disallowed": {"B": "a pin"}}, "placement 1", "A"),
        ({"placement 1": 2.0, "A": 3.0, "B": 3.5, "CPU": 1.0}, {"whole_devices": ["CPU"]}, "placement 1", "A"),
        (
            {"placement 1": 2.0, "A": 3.0, "CPU": 1.0},
            {"whole_devices": ["CPU"], "disallowed": PINNED},
            "placement 1",
            "A",
        ),
        ({"placement 1": 4.0, "A": 3.0, "B": 3.5, "CPU": 1.0}, {"whole_devices": ["CPU"]}, "CPU", "CPU"),
        ({"placement 1": 4.0, "A": 3.0, "B": 3.5, "CPU": 3.05}, {"whole_devices": ["CPU"]}, "CPU", "CPU"),
        ({"placement 1": 4.0, "A": 3.0, "CPU": 3.1}, {"whole_devices": ["CPU"]}, "A", "A"),
        ({"placement 1": 2.0, "differs": 1.0, "A": 3.0}, {}, "placement 1", "A"),  # by more than may be
        ({"placement 1": 9.0, "differs": 1.0, "A": 3.0}, {}, "A", "A"),
        ({"placement 1": 9.0, "A": 1.0, "given": 3.0}, {"defaults": {"given": "A"}}, "A", "A"),
        ({"placement 1": 9.0, "A": 3.0, "given": 3.0}, {"defaults": {"given": "A"}}, "given", "given"),
        ({"placement 1": 9.0, "A": 3.0, "given": 1.0}, {"defaults": {"given": "A"}}, "given", "given"),
    ],
)
def test_the_answer_is_the_fastest_that_may_be_it_and_beats_device_and_start(
    client: WorkerClient,
    monkeypatch: pytest.MonkeyPatch,
    times_ms: dict[str, float],
    given: dict[str, Any],
    answer: str,
    best_single: str,
) -> None:
    def judged(_: Verifier, name: str, **__: bool) -> Verdict:
        return Verdict("cpu", 0.1, reason="it differs" if name == "differs" else None)

    monkeypatch.setattr(Verifier, "in_own_process", judged)
    monkeypatch.setattr(Verifier, "compared", judged)
    runner, limits = Timed(client, LATENCY), TimeLimits(Protocol(min_rounds=8, max_rounds=8, turn_s=0.001))
    runner.seconds = {name: 1e-3 * ms for name, ms in times_ms.items()}
    start = {name: WHOLE for name in times_ms if name == "start"}
    singles = {name: WHOLE for name in times_ms if name not in ("start", "placement 1")}
    check = Check(reduced="bf16", max_difference=0.1 if "differs" in times_ms else None)
    candidates = Candidates({"placement 1": WHOLE}, singles, start=start, **given)
    found = final_comparison(runner, candidates, limits, check, rng=np.random.default_rng(0))
    assert (found.answer, found.best_single) == (answer, best_single)
    assert all(found.ratios[name].value == pytest.approx(3.0 / times_ms[name]) for name in start)
    assert (found.whole_devices == ("CPU",)) == (
        "whole_devices" in given and answer == "placement 1" and "disallowed" not in given
    )
    assert found.candidates.disallowed.keys() >= given.get("disallowed", {}).keys()
    assert check.is_limit or answer == "A" or "A" not in found.verdicts  # what is not the answer is not objected to


def test_a_placement_to_start_with_that_does_not_run_is_not_judged(client: WorkerClient) -> None:
    found = alone(client, {}, {"A": WHOLE}, Check(reduced="bf16"), start={"start": Candidate("NO_SUCH_DEVICE")})
    assert (found.answer, set(found.verdicts)) == ("A", {"A"})
