"""The answer as people see it: what to run, its table, the line that uses it, and doubts before all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hsdag.commands.place.lines import memory_sentence
from hsdag.commands.place.outcome import with_lines
from hsdag.commands.place.place import keep_better
from hsdag.commands.place.records import DeviceSettings, Row, ScenarioRecord, TriedSetting, Verdict
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.tables import compact_table, scenario_table, settings_table
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.scenario import Scenario, parse_scenarios
from hsdag.ir.placement.placement import LatencyRecord, ModelRecord, Placement, SpeedupRecord
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from tests.placements import by_hand

GRAPH = graph_from_edges(["Parameter", "Relu"], [(0, 1)])
HALF = DeviceSpec.parse("CPU_0=CPU[INFERENCE_NUM_THREADS=1]")


def row(name: str, ratio: float, ci95: tuple[float | None, float | None], *, rounds: int = 20, **more: Any) -> Row:
    """Of a candidate beside a device that takes 0.1 s."""
    found = {"median": 0.1 / ratio, "p95": 0.2, "runs": 40, "submodels": 1, "ops": {"CPU_0": 2}, "is_answer": False}
    return Row(name=name, ratio=ratio, ci95=ci95, rounds=rounds, **{**found, **more})


ROWS = (
    row("shards 1", 2.0, (1.9, 2.1), is_answer=True),
    row("placement 1", 1.5, (0.9, 2.5)),
    row("placement 2", 1.4, (1.3, 1.5)),
    row("HETERO:CPU_0,CPU_1", 1.25, (None, None), rounds=3),
    row("CPU_0", 1.0, (1.0, 1.0)),
    row("CPU_1", 1.0, (0.99, 1.01)),
)


def result(spec: DeviceSpec, rows: tuple[Row, ...], **more: Any) -> PlaceResult:
    """Of a search whose answer has all ops on a device, and whose best single device is CPU_0."""
    model = ModelRecord.of(GRAPH)
    named = dict.fromkeys(GRAPH.canonical_names, spec.name)
    how: dict[str, Any] = {"method": "auto", "seed": 0, "objective": "latency", "executor": "hetero"}
    gain = SpeedupRecord(versus="CPU_0", ratio=1.0, ci95=(1.0, 1.0))
    placement = Placement(model=model, devices=[spec], affinity=named, speedup=gain, **how)
    ended = {"sentence": "S.", "objective": "latency", "unit": "s", "value": 0.1, "budget_s": 1.0, "finished": ""}
    return PlaceResult(placement=placement, rows=rows, **{**ended, "verdict": Verdict("cpu", 0.1), **more})


def test_the_table_has_the_answer_the_devices_and_the_best_of_each_other_kind() -> None:
    columns, cells = compact_table(ROWS, "CPU_0", LATENCY)
    assert columns == ["what", "ms", "inferences/s", "times the best device"]
    assert cells == [
        ["shards 1 *", "50", "20", "2.00 (1.90 to 2.10)"],
        ["placement 1", "66.67", "15", "1.50 (0.90 to 2.50), not decided"],
        ["HETERO:CPU_0,CPU_1", "80", "12.5", "1.25, not decided: 3 rounds"],
        ["CPU_0", "100", "10", "1"],
        ["CPU_1", "100", "10", "1.00 (0.99 to 1.01)"],
    ]


def test_throughput_is_in_inferences_a_second_alone() -> None:
    columns, cells = compact_table(ROWS[:1], "CPU_0", THROUGHPUT)
    assert (columns[1:3], cells[0][:2]) == (["inferences/s", "times the best device"], ["shards 1 *", "20"])
    assert THROUGHPUT.text(0.02) == "50 inferences/s"


@pytest.mark.parametrize(("others", "said"), [(0.2, ""), (0.5, ", not decided")])
def test_a_wide_interval_beside_other_programs_is_no_verdict(others: float, said: str) -> None:
    _, cells = compact_table([row("placement 1", 2.0, (1.5, 2.7))], "CPU_0", LATENCY, others)
    assert cells[0][-1] == f"2.00 (1.50 to 2.70){said}"


def test_a_part_of_the_cpu_is_named_in_words_of_openvino_and_can_be_compiled_there() -> None:
    found = with_lines(result(HALF, (row("CPU_0", 1.0, (1.0, 1.0), is_answer=True),)))
    run = "Run the whole model on CPU_0 (CPU with INFERENCE_NUM_THREADS=1): 100 ms, 10 inferences a second."
    assert found.said[0] == run
    assert found.lines[:2] == (run, "S.")
    used = next(line for line in found.lines if line.startswith("To use it"))
    assert used.endswith(f"ov.Core().compile_model('model.xml', 'CPU', {HALF.properties})")


TOKENS = tuple(ScenarioRecord.of(each) for each in parse_scenarios((), "128,1+1023@3"))


def test_a_language_model_is_told_by_its_first_token_and_each_next_one() -> None:
    kept = [ScenarioRecord.of(Scenario.parse(each.data_shape)) for each in TOKENS]  # as a placement file has them
    assert [each.tokens for each in kept] == ["128", "1+1023"]
    columns, cells = scenario_table(TOKENS, {"A": (0.064, 0.005), "B": (None, 0.01), "C": ()})
    assert columns == ["by scenario", "first token after 128, ms", "next token after 1023, ms", "tokens/s"]
    assert cells == [["A", "64", "5", "200"], ["B", "-", "10", "100"]]
    assert scenario_table(TOKENS[:1], {"A": (0.064,)})[1] == [["A", "64"]]
    other = ScenarioRecord(data_shape="x[1]", tokens=None, weight=1.0)
    assert scenario_table([other], {"A": (0.064,)}) == ([], [])
    answer = row("CPU_0", 1.0, (1.0, 1.0), is_answer=True, scenario_medians_s=(0.064, 0.005))
    found = result(HALF, (answer,), scenarios=TOKENS)
    assert compact_table(found.rows, found.versus, LATENCY, scenarios=found.scenarios) == (
        ["what", *columns[1:], "times the best device"],
        [["CPU_0 *", "64", "5", "200", "1"]],
    )
    assert found.run.endswith(": first token after 128 in 64 ms, next token after 1023 in 5 ms (200 tokens a second).")


def test_memory_of_a_language_model_grows_with_its_context() -> None:
    weight_bytes = {"CPU_0": 3e6 + 1024e3, "idle": 0.0}
    assert memory_sentence(weight_bytes, {"CPU_0": 1e3}, TOKENS) == (
        "Memory for weights and state, by tokens of context: CPU_0 3 MB and 1 kB a token (4.02 MB at 1024, 7.1 MB at "
        "4096, 35.8 MB at 32768)."
    )


def test_what_is_gained_stands_in_the_first_line_and_doubts_about_outputs_before_it() -> None:
    rows = (row("CPU", 1.5, (1.4, 1.6), is_answer=True), row("CPU_0", 1.0, (1.0, 1.0)))
    found = with_lines(result(DeviceSpec("CPU", "CPU"), rows))
    assert found.lines[0].endswith(", 1.50 times as fast as the best single device, CPU_0.")
    doubtful = {"verdict": Verdict("cpu", 0.1, reason="wrong"), "warnings": ("busy", "CPU: wrong")}
    found = with_lines(result(DeviceSpec("CPU", "CPU"), rows, **doubtful))
    assert [found.lines[0], *found.lines[2:4]] == ["Warning: CPU: wrong.", "S.", "Warning: busy."]
    assert found.summary == found.lines[:4]


def placed(median_s: float, objective: str = "latency") -> Placement:
    taken = LatencyRecord(median_s=median_s, mean_s=median_s, p95_s=median_s, runs=9, measured=True)
    return by_hand(GRAPH, [HALF], ["CPU_0", "CPU_0"], latency=taken, objective=objective)


def test_a_better_placement_of_an_earlier_search_is_kept_and_told(tmp_path: Path) -> None:
    path, earlier = tmp_path / "m.placement.json", placed(0.04)
    for _ in range(2):
        earlier.save(path)
        said = keep_better(path, placed(0.05))
    assert said is not None
    assert f"took 40 ms in its search, and this one takes 50 ms: it is kept as {tmp_path}/m.placement.2.json" in said
    assert Placement.load(tmp_path / "m.placement.1.json") == earlier
    assert not path.exists()
    assert keep_better(path, placed(0.05)) is None
    earlier.save(path)
    assert keep_better(path, placed(0.03)) is None
    assert keep_better(path, placed(0.05, "throughput")) is None


def test_a_device_as_openvino_sets_it_up_is_in_the_table_however_slow_it_is() -> None:
    many = [row(f"{kind} 1", 1.5, (1.4, 1.6)) for kind in "abcdefgh"]
    _, cells = compact_table([*many, *ROWS, row("CPU_default", 0.5, (0.4, 0.6))], "CPU_0", LATENCY)
    assert cells[-1][0] == "CPU_default"


def test_a_raced_setting_has_its_ratio_with_an_interval_if_rounds_were_enough_or_the_failure() -> None:
    tried = [
        TriedSetting(setting={}, ratio=1.25, ci95=(1.2, 1.3)),
        TriedSetting(setting={}, ratio=1.5),
        TriedSetting(setting={}, failure="no such property"),
    ]
    cells = settings_table([DeviceSettings(device="GPU", tried=tuple(tried))])[1]
    assert [each[2:] for each in cells] == [
        ["1.250", "1.200..1.300"],
        ["1.500", "too few rounds"],
        ["-", "no such property"],
    ]
