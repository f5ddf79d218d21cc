"""What a machine gets to measure with: the model as bytes, and a process that may be killed."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hsdag.boxes.jobs import Measure
from hsdag.boxes.site import Packed, Site
from hsdag.evaluators.bench import Relative
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.fleet.job import Findings, Shared
from hsdag.ir import processes
from hsdag.runtime.measuring.candidate import Candidate, Limits
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.search.verifying import Check, judging

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
FAST, SLOW = Candidate("CPU_FAST"), Candidate("CPU_SLOW")


@pytest.fixture(scope="module")
def site(tiny_resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site as another machine gets it, where the model is not on the disk."""
    folder = tmp_path_factory.mktemp("model")
    for path in (tiny_resnet, tiny_resnet.with_suffix(".bin")):
        (folder / path.name).write_bytes(path.read_bytes())
    packed = Packed.of(WorkerSetup(folder / tiny_resnet.name, resolve_devices(DEVICES, None).all))
    for path in folder.iterdir():
        path.unlink()
    judge = partial(judging, Check(reduced=False, max_difference=0.5))
    made = Site(packed, LATENCY, Limits(60.0, 30.0), SearchMeasurement(1, 2), judge)
    sent: Site = pickle.loads(Shared.of(made).content)
    yield sent
    sent.client.close()


def measured(site: Site, candidate: Candidate, reference: Candidate = FAST) -> Relative:
    return Measure(candidate, reference, float("inf"), ()).run((site,), lambda own: own)


def test_the_model_is_read_from_what_was_sent_and_no_file_is_left(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", f"{tmp_path}")
    fresh = Site(site.packed, site.objective, site.limits, site.measurement, site.judge)
    try:
        assert measured(fresh, SLOW).ratio > 0
        assert list(tmp_path.glob("hsdag-*")) == []
    finally:
        fresh.client.close()


def test_what_does_not_compile_fails_and_a_reference_that_does_not_is_told_apart(site: Site) -> None:
    candidate, reference = measured(site, Candidate("NONE")), measured(site, SLOW, Candidate("NONE"))
    assert (candidate.is_unfit, reference.is_unfit) == (False, True)
    assert "NONE" in f"{candidate.failure}"
    assert "does not run" in f"{reference.failure}"


def test_a_measuring_process_that_was_killed_is_started_again_with_the_model(site: Site) -> None:
    assert measured(site, SLOW).failure is None
    process, num_starts = site.client._process, site.client.num_starts
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    assert measured(site, SLOW).failure is None
    assert site.client.num_starts == num_starts + 1


def test_outputs_are_judged_where_they_are_measured(site: Site) -> None:
    strict = Site(site.packed, LATENCY, site.limits, site.measurement, partial(judging, Check(True, "cpu", -1.0)))
    try:
        assert "outputs differ" in f"{measured(strict, SLOW).failure}"
    finally:
        strict.client.close()


def test_a_measurement_that_nobody_needs_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.0)
    relative = Measure(SLOW, FAST, float("inf"), ()).run((site,), lambda _: Findings(is_over=True))
    assert "given up" in f"{relative.failure}"


def test_a_model_goes_with_its_weights_and_a_folder_whole(tmp_path: Path) -> None:
    names = ["m.xml", "m.bin", "m.onnx", "m.onnx.data", "other.bin", "saved/saved_model.pb", "saved/variables/index"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for model, count in {"m.xml": 2, "m.onnx": 2, "saved": 2, "other.bin": 1}.items():
        packed = Packed.of(WorkerSetup(tmp_path / model, ()))
        again = packed.unpacked(tmp_path / "sent" / model).model
        assert len(packed.files) == count
        assert again.exists()
        assert again.is_dir() or again.read_text() == model
