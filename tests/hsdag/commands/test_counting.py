"""Reports as benchmark_app writes them, from figures that are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.commands.bench import BenchResult, BenchRow
from hsdag.commands.counting import check_report, write_reports
from hsdag.ir.errors import OutputError
from hsdag.ir.placement import LatencyRecord
from hsdag.runtime.measuring.latency import Ratio
from hsdag.runtime.measuring.messages import Counter, Opened


def counter(name: str, real_s: float, cpu_s: float) -> Counter:
    return Counter(name, "EXECUTED", "Relu", "jit", real_s, cpu_s)


def test_average_counters_are_means_over_all_inferences(tmp_path: Path) -> None:
    latency = LatencyRecord(median_s=1e-3, mean_s=1e-3, p95_s=1e-3, runs=2, measured=True)
    row = BenchRow("CPU", latency, Ratio(1.0, 1.0, 1.0), None, Opened(0.1, 1, ("CPU",)), 1e-3, 1e-3)
    runs = [[counter("a", 1e-3, 2e-3), counter("b", 5e-3, 5e-3)], [counter("a", 3e-3, 8e-3), counter("b", 7e-3, 5e-3)]]
    result = BenchResult((row,), {}, "CPU", None, {}, counters={"CPU": runs})
    write_reports(result, {}, "average_counters", tmp_path, as_json=True)
    found = json.loads((tmp_path / "benchmark_average_counters_report.json").read_text())["avg_performance"]
    means = {node["name"]: (node["real_time"], node["cpu_time"]) for node in found["nodes"]}
    assert means == {"a": ("2.000", "5.000"), "b": ("6.000", "5.000")}
    assert (found["total_real_time"], found["total_cpu_time"]) == ("8.000", "10.000")


def test_a_file_is_no_folder_for_reports_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file; name a folder for reports"):
        check_report("no_counters", tmp_path / "file", json_stats=False)
