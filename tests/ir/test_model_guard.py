"""ModelGuard: a model that takes OpenVINO's reader down costs another process, and is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hsdag.ir import ModelError
from hsdag.ir.model_guard import IDLE_S, ModelGuard
from hsdag.ir.reader import load_model

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"


@pytest.fixture
def guard() -> Iterator[ModelGuard]:
    made = ModelGuard()
    yield made
    made.close()


def test_a_model_that_crashes_the_reader_is_refused(guard: ModelGuard) -> None:
    with pytest.raises(
        ModelError, match=r"model\.xml is not .* its reader crashed \(SIGSEGV\); export the model again"
    ):
        guard.check(CORPUS / "ir" / "reader-crash-without-inputs" / "model.xml", {}, {})


def test_a_model_that_hangs_the_reader_is_refused(guard: ModelGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.ir.model_guard.LEAST_LIMIT_S", 1.0)
    with pytest.raises(ModelError, match="it took more than 1 s"):
        guard.check(CORPUS / "onnx" / "reader-hang" / "model.onnx", {}, {})


def test_the_present_folder_is_refused_in_one_line(
    guard: ModelGuard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"no model")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"^\. "):
        guard.check(Path(), {}, {})


def test_after_a_crash_the_next_model_is_read(guard: ModelGuard, tiny_resnet: Path) -> None:
    with pytest.raises(ModelError, match="SIGSEGV"):
        guard.check(CORPUS / "ir" / "reader-crash-without-inputs" / "model.xml", {}, {})
    guard.check(tiny_resnet, {}, {})


@pytest.mark.slow
def test_a_process_that_ended_since_it_was_idle_is_replaced(guard: ModelGuard, tiny_resnet: Path) -> None:
    guard.check(tiny_resnet, {}, {})
    assert guard._process is not None
    assert guard._process.wait(IDLE_S + 60) == 0
    guard._process.returncode = None  # as where it ends while it is being asked
    guard.check(tiny_resnet, {}, {})


def test_reading_a_model_guards_it_and_leaves_this_process_alone() -> None:
    with pytest.raises(ModelError, match="SIGSEGV"):
        load_model(CORPUS / "ir" / "reader-crash-without-inputs" / "model.xml")


def test_shapes_are_given_where_they_can_do_no_harm(guard: ModelGuard, tiny_resnet: Path) -> None:
    with pytest.raises(ModelError, match="the model does not take the given shapes of its inputs"):
        guard.check(tiny_resnet, {"": (1, 2**31 - 1, 1, 1)}, {"other": (1,)})
