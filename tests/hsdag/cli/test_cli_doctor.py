"""``hsdag doctor``: one document, or tables, findings and what to run next; exit code 0 whatever was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.diagnosis import cuda_check, examination


@pytest.fixture(autouse=True)
def short_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "PAIR_S", 0.0)


def test_a_document_holds_devices_pairs_model_and_findings(capsys: pytest.CaptureFixture[str], tiny_bert: Path) -> None:
    assert run(["doctor", str(tiny_bert), "--devices", "CPU,GPU.9", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [device["facts"] is None for device in document["devices"]] == [False, True]
    assert document["pairs"] == []
    assert document["model"]["name"]
    assert document["findings"][0]["severity"] == "danger"
    assert document["findings"][0]["about"] == "GPU.9"
    assert document["next"] == [f"hsdag place {tiny_bert} --partition-cpu 2"]


def test_tables_findings_and_commands_are_shown(capsys: pytest.CaptureFixture[str], tiny_bert: Path) -> None:
    assert run(["doctor", str(tiny_bert), "--partition-cpu", "2"]) == 0
    shown = capsys.readouterr()
    words = ("OpenVINO 20", "CPU_0 and CPU_1", "at once", "tiny_bert: ", "HETERO would make", "PIPELINE_PARALLEL")
    assert all(word in shown.out for word in words)
    assert f"next: hsdag place {tiny_bert} --partition-cpu 2" in shown.out
    assert "CPU_0: loading" in shown.err


def test_the_check_of_the_cuda_engine_prints_its_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = cuda_check.Item("copy", False, "a copy is damaged")
    report = cuda_check.CudaReport(devices=("A",), machine={"torch": "2"}, is_on_gpu=False, items=(item,))
    monkeypatch.setattr(cuda_check, "check_cuda", lambda devices, on_step: report)  # noqa: ARG005
    assert run(["doctor", "--cuda"]) == 0
    assert (
        "copy  FAIL  a copy is damaged\ntorch 2\n0 of 1 checks on A passed. There is no CUDA" in capsys.readouterr().out
    )
    assert run(["doctor", "--cuda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["passed"] is False
