"""The executor cuda in solve: costs are measured, the answer is simulated and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag import api
from hsdag.cli.app import run
from hsdag.commands.torch_solve import ANSWER, _sentence
from hsdag.ir.errors import OptionError
from hsdag.ir.placement import Placement
from hsdag.models.chainmm import ChainSizes, chainmm
from hsdag.runtime.measuring.latency import Comparison, Ratio, Samples
from hsdag.search.final import FinalResult

DEVICES = "A=cpu[threads=1;memory=1e9],B=cpu[threads=1;memory=1e9]"
pytestmark = pytest.mark.usefixtures("short_comparisons")


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    """The JSON answer of a solve, and the folder of its files."""
    folder = tmp_path_factory.mktemp("solved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HSDAG_CACHE_DIR", str(folder / "cache"))
        found = api.solve(
            chainmm(2, ChainSizes(64)),
            "enumerative",
            executor="cuda",
            devices=DEVICES,
            budget="2s",
            max_evaluations=40,
            with_timeline=True,
        )
    found.placement().save(folder / "p.json")
    assert found.timeline is not None
    assert not found.timeline.simulated
    return found.document(), folder


@pytest.mark.slow
def test_an_answer_is_simulated_on_measured_costs_and_then_run(solved: tuple[dict[str, object], Path]) -> None:
    document, _ = solved
    measured = document["measured"]
    assert isinstance(measured, dict)
    names = {row["name"] for row in measured["rows"]}
    assert {"A", "B"} <= names
    assert measured["answer"] in names
    assert all(row["measured"] and row["median_s"] > 0 for row in measured["rows"])
    assert 0 < document["lower_bound_s"] <= document["makespan_s"]  # type: ignore[operator]
    assert set(document["single_devices_s"]) == {"A", "B"}  # type: ignore[call-overload]


def test_its_placement_is_for_the_cuda_engine_with_measured_figures(solved: tuple[dict[str, object], Path]) -> None:
    placement = Placement.load(solved[1] / "p.json")
    assert placement.executor == "cuda"
    assert placement.latency is not None
    assert placement.latency.measured
    assert [(d.name, d.plugin) for d in placement.devices] == [("A", "cpu"), ("B", "cpu")]
    assert all(record.measured for record in placement.baselines.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"executor": "hetero"}, "solve simulates, or takes --executor cuda, not hetero"),
        ({"executor": "cuda", "links": "egress"}, "--execution and --links do not go with --executor cuda"),
        ({"executor": "cuda", "order": "random"}, "--order random does not go with --executor cuda"),
        ({"devices": "A=cpu"}, "--devices, --shape and --fresh are for --executor cuda"),
    ],
)
def test_what_the_engine_does_not_have_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        api.solve("chainmm", "heft", **given)  # type: ignore[arg-type]


def test_batches_are_simulated_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text(json.dumps({}))
    assert run(["solve", str(tmp_path / "p.json"), "--batch", "4", "--executor", "cuda"]) == 2
    assert "--executor does not go with --batch" in capsys.readouterr().err


def result_of(seconds: dict[str, float], best: str | None, ratio: Ratio) -> FinalResult:
    samples = {name: Samples(tuple((s,) for _ in range(8))) for name, s in seconds.items()}
    comparison = Comparison(samples, {ANSWER: "out of memory"} if ANSWER not in samples else {})
    return FinalResult({}, comparison, {ANSWER: ratio}, best, best or ANSWER, {})


def test_the_sentence_compares_what_was_measured_with_what_was_simulated() -> None:
    result = result_of({ANSWER: 2e-3, "A": 3e-3}, "A", Ratio(1.5, 1.25, 1.75, 8))
    assert _sentence(ANSWER, result, 1e-3, None) == (
        "The answer takes 2 ms as measured, 1 ms as simulated; it is 1.500 times as fast as the best single device, A "
        "(95% interval: 1.250..1.750)."
    )
    assert _sentence("A", result, 1e-3, None).endswith("; it is all on A, the fastest device.")
    assert "; note that its outputs differ." in _sentence(ANSWER, result, None, "its outputs differ")


def test_an_answer_that_did_not_run_says_why() -> None:
    result = result_of({"A": 3e-3}, "A", Ratio(1.0, 1.0, 1.0))
    assert _sentence(ANSWER, result, 1e-3, None) == "The answer has no measured figure: out of memory."
