"""``hsdag bench`` with the options of benchmark_app."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hsdag.cli.app import run

pytestmark = pytest.mark.usefixtures("short_comparisons")


def test_inferences_are_counted_and_reported_as_benchmark_app_does(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, tmp_path: Path
) -> None:
    given = ["-d", "CPU", "-hint", "latency", "-niter", "20", "-nireq", "2", "-cdir", str(tmp_path / "cache")]
    report = ["-report_type", "average_counters", "-report_folder", str(tmp_path)]
    assert run(["bench", "-m", str(tiny_resnet), *given, *report, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["runs"] == 20
    assert row["min_s"] <= row["median_s"] <= row["max_s"]
    assert list((tmp_path / "cache").glob("*.blob"))
    with (tmp_path / "benchmark_report.csv").open() as file:
        cells = dict(line for line in csv.reader(file, delimiter=";") if len(line) == 2)
    assert (cells["hint"], cells["niter"], cells["total number of iterations"]) == ("latency", "20", "20")
    assert float(cells["latency (ms)"]) == pytest.approx(1e3 * row["median_s"], abs=1e-4)
    assert float(cells["throughput"]) == pytest.approx(row["inferences_per_s"], abs=1e-3)
    with (tmp_path / "benchmark_average_counters_report.csv").open() as file:
        head, *layers, total = [line for line in csv.reader(file, delimiter=";") if line]
    assert head == ["layerName", "execStatus", "layerType", "execType", "realTime (ms)", "cpuTime (ms)"]
    assert len(layers) == len({line[0] for line in layers})
    assert float(total[4]) == pytest.approx(sum(float(line[4]) for line in layers), abs=1e-3 * len(layers))


def test_several_candidates_have_a_folder_each_and_json_on_request(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, tmp_path: Path
) -> None:
    devices = ["--devices", "A=CPU[],B=CPU[]", "-nthreads", "1", "-infer_precision", "f32", "-niter", "6"]
    report = ["-report_type", "detailed_counters", "-report_folder", str(tmp_path), "-json_stats"]
    assert run(["bench", str(tiny_resnet), *devices, *report]) == 0
    for name in ("A", "B"):
        found = json.loads((tmp_path / name / "benchmark_report.json").read_text())
        assert found["cmd_options"]["infer_precision"] == "f32"
        counted = json.loads((tmp_path / name / "benchmark_detailed_counters_report.json").read_text())
        assert len(counted["detailed_performance"]) == 10
        executed = [n["exec_type"] for n in counted["detailed_performance"][0]["nodes"] if "EXECUTED" in n["status"]]
        assert any(kind.endswith("f32") for kind in executed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-hint", "latency", "-nthreads", "1"), "--nthreads replaces what --hint latency would choose"),
        (("-report_type", "counters"), "unknown --report-type 'counters'; choose one of no_counters"),
        (("-json_stats",), "add --report-type"),
        (("-m", "other.xml"), "name the model once"),
        (("-d", "AUTO:CPU", "-nstreams", "2"), "AUTO:CPU has its own properties"),
        (("--executor", "cuda", "-d", "A=cpu", "-hint", "none"), "OpenVINO's properties and counters"),
        (("--per-op", "-niter", "3"), "--per-op profiles ops"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert run(["bench", str(tiny_resnet), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")
