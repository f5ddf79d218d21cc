"""ModelGuard: a model that takes OpenVINO's reader down costs another process, and is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsdag.ir import ModelError
from hsdag.ir.model_guard import IDLE_S, READER_COMMAND, ModelGuard, _sizes_bytes
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
    path = CORPUS / "onnx" / "reader-hang" / "model.onnx"
    monkeypatch.setattr("hsdag.ir.model_guard.LEAST_LIMIT_S", 0.5)
    monkeypatch.setattr("hsdag.ir.model_guard.SLOWEST_BYTES_PER_S", 2 * path.stat().st_size)
    with pytest.raises(ModelError, match=r"model\.onnx could not be read: it took more than 1 s; export"):
        guard.check(path, {}, {})
    assert guard._process is None


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
    guard.check(tiny_resnet, {}, {})


def test_a_process_that_ends_as_it_is_asked_is_replaced(
    guard: ModelGuard, tiny_resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_once = (
        "import os, runpy, sys; path = sys.argv.pop(1)\n"
        "if os.path.exists(path): runpy.run_module('hsdag.ir.guarded_reading', run_name='__main__')\n"
        "else: open(path, 'w').close(); print('\"ready\"', flush=True); input()"
    )
    monkeypatch.setattr("hsdag.ir.model_guard.READER_COMMAND", (sys.executable, "-c", ends_once, str(tmp_path / "e")))
    guard.check(tiny_resnet, {}, {})
    assert (tmp_path / "e").exists()


def test_files_of_its_name_count_as_a_model_and_those_beside_it_may_be_its_weights(tmp_path: Path) -> None:
    sizes = {"model.xml": 10, "model.bin": 100, "other.bin": 1000, "model.onnx_data": 10_000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "model.folder").mkdir()
    (tmp_path / "model.gone").symlink_to(tmp_path / "nowhere")
    assert _sizes_bytes(tmp_path / "model.xml") == (10_110, 11_110)
    assert _sizes_bytes(tmp_path) == (11_110, 11_110)


def test_weights_that_our_own_export_writes_beside_an_onnx_file_are_the_models(tmp_path: Path) -> None:
    for name, size in {"m.onnx": 10, "m.onnx.data": 100, "other.onnx.data": 1000}.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert _sizes_bytes(tmp_path / "m.onnx") == (110, 1110)


def test_in_a_folder_that_cannot_be_listed_the_files_of_the_model_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError

    (tmp_path / "model.xml").write_bytes(bytes(10))
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert _sizes_bytes(tmp_path / "model.xml") == (10, 10)


def test_reading_a_model_guards_it_and_leaves_this_process_alone() -> None:
    with pytest.raises(ModelError, match="SIGSEGV"):
        load_model(CORPUS / "ir" / "reader-crash-without-inputs" / "model.xml")


def test_the_reader_has_memory_for_six_times_what_lies_beside_a_model(
    guard: ModelGuard, tiny_resnet: Path, tmp_path: Path
) -> None:
    for source in (tiny_resnet, tiny_resnet.with_suffix(".bin")):
        (tmp_path / f"model{source.suffix}").write_bytes(source.read_bytes())
    (tmp_path / "other.data").write_bytes(bytes(1_000_000))
    guard.check(tmp_path / "model.xml", {}, {})
    assert guard._process is not None
    limits = Path(f"/proc/{guard._process.pid}/limits").read_text().splitlines()
    (data,) = (line.split() for line in limits if line.startswith("Max data size"))
    assert int(data[3]) == 800_000_000 + 6 * sum(path.stat().st_size for path in tmp_path.iterdir())


def test_the_reader_of_a_model_that_hangs_ends_though_nobody_kills_it() -> None:
    path = CORPUS / "onnx" / "reader-hang" / "model.onnx"
    request = {"path": str(path), "size_bytes": 0, "limit_s": 0.1, "shapes": {}, "spare": {}, "environment": {}}
    done = subprocess.run(READER_COMMAND, input=json.dumps(request) + "\n", text=True, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGALRM


def test_a_reader_that_ends_at_once_though_it_is_asked_again_is_told_in_one_line(
    guard: ModelGuard, tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = "print('\"ready\"', flush=True); input()"
    monkeypatch.setattr("hsdag.ir.model_guard.READER_COMMAND", (sys.executable, "-c", ends))
    with pytest.raises(ModelError, match=r"model that OpenVINO can read: its reader ended; export"):
        guard.check(tiny_resnet, {}, {})


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_one(
    guard: ModelGuard, tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    guard.check(tiny_resnet, {}, {})
    with monkeypatch.context() as patch:
        patch.setattr("hsdag.ir.model_guard.select.select", interrupt)
        with pytest.raises(KeyboardInterrupt):
            guard.check(CORPUS / "onnx" / "name-that-is-no-text" / "model.onnx", {}, {})
    guard.check(tiny_resnet, {}, {})


def test_shapes_are_given_where_they_can_do_no_harm(guard: ModelGuard, tiny_resnet: Path) -> None:
    with pytest.raises(ModelError, match="the model does not take the given shapes of its inputs"):
        guard.check(tiny_resnet, {"": (1, 2**31 - 1, 1, 1)}, {"other": (1,)})
