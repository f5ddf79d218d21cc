"""Answers as commands print them: in tables, in which units, and what is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.cli import doctor
from hsdag.cli.app import run
from hsdag.cli.output import print_table
from hsdag.cli.profile import show_profile
from hsdag.commands.doctor import examination
from hsdag.commands.doctor.examination import DevicePair, Examination, ExaminedDevice, HostFacts
from hsdag.commands.doctor.findings import finding
from hsdag.commands.doctor.model import HeteroChoice, HeteroDevice, ModelReport
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.profile import HeavyOp, ProfiledDevice, ProfiledLinks, ProfileResult
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.measuring.messages import DeviceFacts, Precision
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from tests.hsdag.answers import answer


def test_inspect_counts_what_the_model_holds(capsys: pytest.CaptureFixture[str], tiny_resnet: Path) -> None:
    document = answer(capsys, "inspect", tiny_resnet)
    model = load_model(tiny_resnet)
    assert document["nodes"] == len(model.get_ops())
    assert document["edges"] == sum(op.get_input_size() for op in model.get_ops())
    assert document["mean_degree"] == pytest.approx(document["edges"] / document["nodes"])
    assert sum(document["op_histogram"].values()) == document["nodes"]
    assert document["unsupported"] == {"CPU": []}
    assert run(["inspect", str(tiny_resnet)]) == 0
    text = capsys.readouterr().out
    assert ("CPU runs every op." in text, "not queried" in text) == (True, False)


def test_export_writes_what_a_placement_holds(
    capsys: pytest.CaptureFixture[str],
    tiny_resnet: Path,
    tmp_path: Path,
    kept_search: PlaceResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out.json"
    kept_search.save(out)
    document = answer(capsys, "export", out, "--format", "json", "-o", tmp_path / "copy.json")
    assert document["files"] == [str(tmp_path / "copy.json")]
    assert Placement.load(tmp_path / "copy.json") == kept_search.placement
    table = tiny_resnet.with_suffix(".csv")  # beside the model, which a table does not touch
    assert answer(capsys, "export", out, "--format", "csv", "-m", tiny_resnet, "-o", table)["files"] == [str(table)]
    table.unlink()
    monkeypatch.setattr("hsdag.exports.library.COMPILERS", ())
    assert (
        run(["export", str(out), "--format", "openvino", "-m", str(tiny_resnet), "-o", str(tmp_path / "folder")]) == 0
    )
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'folder'}, ")  # not the names of all files


def test_inferences_are_counted_as_benchmark_app_does(capsys: pytest.CaptureFixture[str], tiny_resnet: Path) -> None:
    given = ["-d", "CPU[NUM_STREAMS=1]", "-hint", "latency", "-niter", "20", "-nireq", "2"]
    (row,) = answer(capsys, "bench", "-m", tiny_resnet, *given)["rows"]
    assert row["runs"] == 20
    assert row["min_s"] <= row["median_s"] <= row["max_s"]


@pytest.fixture(autouse=True)
def short_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "WINDOWS", 1)


def test_a_document_holds_devices_pairs_model_and_findings(capsys: pytest.CaptureFixture[str], tiny_bert: Path) -> None:
    assert run(["doctor", str(tiny_bert), "--devices", "CPU,GPU.9", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [device["facts"] is None for device in document["devices"]] == [False, True]
    assert document["pairs"] == []
    assert document["findings"][0]["severity"] == "danger"
    assert document["findings"][0]["about"] == "GPU.9"
    assert document["next"] == [f"hsdag place {tiny_bert} --partition-cpu 2"]


A = ProfiledDevice(
    name="A", latency_s=None, spread=0.05, runs=3, compile_s=1.5, first_s=0.002, resident_bytes=10_000_000,
    device_bytes=None, memory_bytes=None, launch_s=2e-6, unsupported_ops=1, wins=7, saved_s=0.001,
)  # fmt: skip
B = A.model_copy(update={"name": "B", "latency_s": 0.004, "device_bytes": 5_000_000, "memory_bytes": 2e9})
LINKS = ProfiledLinks(latency_s=[[None, 1e-6], [2e-6, None]], bandwidth_bytes_per_s=[[None, 1e9], [None, None]])
HEAVY = HeavyOp(name="conv", type="Convolution", fused_ops=2, time_s={"B": 0.003}, best=None, share=0.5)


def shown(capsys: pytest.CaptureFixture[str], devices: list[ProfiledDevice]) -> list[str]:
    """The lines of a profile without their columns' widths."""
    result = ProfileResult(
        source="measured", devices=devices, links=LINKS, slowdown={"compute": [[None, 1.5], [2.0, None]]}, ops=9,
        units=4, heaviest=[HEAVY, HEAVY], schedule=ScheduleProblem.from_arrays(np.ones((1, 2)), []),
    )  # fmt: skip
    show_profile(result, 1)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_tables_show_devices_pairs_and_the_heaviest_ops(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, [A, B])
    for expected in (
        "A - 5.0% 3 2 1.5 2 10 - - 1",
        "B 4 5.0% 3 2 1.5 2 10 5 2.0 1",
        "A -> B 1 1",
        "B -> A 2 -",
        "A beside B 1.50",
        "B beside A 2.00",
        "the 1 heaviest of 2, each computed as one",
        "conv Convolution 2 - 3 - 50.0%",
        "A 7 1",
    ):
        assert lines.count(expected) == 1, expected
    assert lines[-1] == "9 ops in 4 placement units"
    assert not [line for line in shown(capsys, [A]) if line.startswith("link")]


NAME = "placement_with_a_name_that_is_longer_than_forty_characters/:smile:[bold]"
ROWS = [["CPU *", "1.5", "CPU:20"], [NAME, "13.5", "A:1 B:2 " * 8]]
GREEN = "\x1b[1;32m"


def table_of(capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, **environment: str) -> str:
    """What is printed where a terminal would have so many columns; FORCE_COLOR makes one of a pipe."""
    patch.setenv("COLUMNS", "40")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        patch.delenv(name, raising=False)
    for name, value in environment.items():
        patch.setenv(name, value)
    print_table("times", ["candidate", "median ms", "ops per device"], ROWS)
    return capsys.readouterr().out


def test_lines_are_plain_and_whole_with_figures_to_the_right_in_a_pipe_and_the_answer_has_a_colour_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    title, _, answer, other = table_of(capsys, monkeypatch).splitlines()
    assert (title, answer.split(), other.split()) == (
        "times", ["CPU", "*", "1.5", "CPU:20"], [NAME, "13.5", *8 * ["A:1", "B:2"]],
    )  # fmt: skip
    assert answer.index("1.5") - 1 == other.index("13.5")
    assert answer.index("CPU:20") == other.index("A:1")
    coloured = table_of(capsys, monkeypatch, FORCE_COLOR="1", TERM="xterm-256color")
    assert f"{GREEN}CPU *" in coloured
    assert f"{GREEN}{NAME}" not in coloured
    assert GREEN not in table_of(capsys, monkeypatch, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")


def printed(capsys: pytest.CaptureFixture[str], expected: list[str]) -> None:
    """Check that these lines were printed in this order, whatever the columns' widths, and others between them."""
    lines = iter([" ".join(line.split()) for line in capsys.readouterr().out.splitlines()])
    assert [line for line in expected if line not in lines] == []


def test_an_examination_has_its_devices_pairs_model_findings_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    facts = DeviceFacts("a GPU", "discrete", "2026", 1.5e9, (), "f16")
    known = Precision({"max_relative": 0.001}, {"max_relative": 0.0}, "24.1")
    devices = [
        ExaminedDevice(name=name, plugin=name, properties={}, facts=found, outputs_of_a_small_network=gaps)
        for name, found, gaps in (
            ("A", facts, known),
            ("B", replace(facts, memory_bytes=None, precision=None), None),
            ("C", None, None),
        )
    ]
    made = (HeteroDevice(name="A", ops=2, weight_bytes=3_000_000),)
    choice = HeteroChoice(target="HETERO:A,B", policy=None, failure="no", devices=made, parted_variables={})
    both: dict[str, Any] = {
        "hetero": (choice, choice.model_copy(update={"failure": None, "policy": "PIPELINE_PARALLEL"}))
    }
    report = ModelReport(
        name="m", ops=3, weight_bytes=2_000_000, open_inputs=(), unsupported={}, variables=(), outputs={},
        imprecise=(), **both,
    )  # fmt: skip
    said = tuple(finding("idle", about, name="B", busy="A runs") for about in ("one", "other"))
    host = HostFacts(threads=2, memory_bytes=2.0**31, usable_memory_bytes=2.0**30)
    pairs = (DevicePair(names=("A", "B"), gains={"compute": 1.5}),)
    doctor._show(
        Examination(
            openvino="2026.4", host=host, devices=tuple(devices), pairs=pairs, model=report,
            genai={"chat": None, "speech": "why"}, findings=said, next=("hsdag place m",),
        )
    )  # fmt: skip
    printed(
        capsys,
        [
            "OpenVINO 2026.4; 2 threads of the CPU, 2.1 GB of memory, 1.1 of it free",
            *("A a GPU 24.1 1.5 f16 0.001", "B a GPU - - - -", "C does not load - - - -", "A and B 1.50 -"),
            *("m: 3 ops, 2 MB of weights", "HETERO:A,B - does not compile -", "HETERO:A,B PIPELINE_PARALLEL A 2 3"),
            *("chat works", "speech no: why"),
            *("warning: one, other: B will get nothing: A runs every op", "next: hsdag place m"),
        ],
    )


def test_a_model_in_place_of_a_problem_is_answered_with_what_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model := tmp_path / "cls.onnx").write_bytes(b"\x08\xff")
    assert run(["solve", str(model)]) == 2
    said = capsys.readouterr().err
    assert f"hsdag place {model} places it, hsdag profile {model} -o costs.json makes a problem file of it" in said


def test_the_help_begins_with_what_is_used_first(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    said = capsys.readouterr().out
    listed = re.findall(r"^  (\w+)  ", said.partition("Commands:")[2], re.MULTILINE)
    assert "Start here: hsdag place MODEL" in said
    assert listed[:5] == ["place", "bench", "explain", "report", "export"]
    assert listed[10:] == sorted(listed[10:])
