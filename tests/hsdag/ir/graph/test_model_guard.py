"""ModelGuard: a model that takes OpenVINO's reader down costs another process, and is refused."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.errors import FLAGS_VARIABLE, ModelError
from hsdag.base.processes import Request
from hsdag.ir.graph.model_guard import IDLE_S, READER_COMMAND, ModelGuard, ReadModel, _sizes_bytes
from hsdag.ir.graph.reader import read_model_file

CORPUS = Path(__file__).parents[3] / "fuzz" / "corpus"


@pytest.fixture
def guard() -> Iterator[ModelGuard]:
    made = ModelGuard()
    yield made
    made.close()


def process_of(guard: ModelGuard) -> subprocess.Popen[bytes]:
    """That which runs now."""
    assert guard._client is not None
    assert guard._client._process is not None
    return guard._client._process


def test_a_model_that_hangs_the_reader_is_refused(guard: ModelGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CORPUS / "onnx" / "reader-hang" / "model.onnx"
    monkeypatch.setattr("hsdag.ir.graph.model_guard.LEAST_LIMIT_S", 0.5)
    monkeypatch.setattr("hsdag.ir.graph.model_guard.SLOWEST_BYTES_PER_S", 2 * path.stat().st_size)
    words = r"model\.onnx could not be read: the reader gave no answer within 1 s and was killed; try again when"
    with pytest.raises(ModelError, match=words):
        guard.check(path, {}, {})
    assert guard._client is not None
    assert not guard._client.is_running


def test_a_reader_names_options_as_its_caller_does_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (opset13.parameter([2], name=name) for name in "ab")
    path = tmp_path / "two.xml"
    ov.save_model(ov.Model([opset13.add(a, b)], [a, b]), path)
    for flags, words in (("", "name them in shape$"), ("1", "name them in --shape$"), ("", "name them in shape$")):
        monkeypatch.setenv(FLAGS_VARIABLE, flags)
        with pytest.raises(ModelError, match=words):
            read_model_file(path, {"": (3,)})


def test_a_model_that_crashes_the_reader_is_refused_and_the_next_one_read(guard: ModelGuard, tiny_resnet: Path) -> None:
    words = r"model\.xml is not .* the reader was ended by SIGSEGV; export the model again"
    with pytest.raises(ModelError, match=words):
        guard.check(CORPUS / "ir" / "reader-crash-without-inputs" / "model.xml", {}, {})
    guard.check(tiny_resnet, {}, {})


def test_files_of_its_name_count_as_a_model_and_those_beside_it_may_be_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"model.xml": 10, "model.bin": 100, "other.bin": 1000, "model.onnx_data": 10_000, "model.onnx.data": 7}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "model.folder").mkdir()
    (tmp_path / "model.gone").symlink_to(tmp_path / "nowhere")
    assert _sizes_bytes(tmp_path / "model.xml") == (10_117, 11_117)
    assert _sizes_bytes(tmp_path) == (11_117, 11_117)

    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)  # the folder cannot be listed
    assert _sizes_bytes(tmp_path / "model.xml") == (110, 110)


def test_the_reader_has_memory_for_six_times_what_lies_beside_a_model(
    guard: ModelGuard, tiny_resnet: Path, tmp_path: Path
) -> None:
    for source in (tiny_resnet, tiny_resnet.with_suffix(".bin")):
        (tmp_path / f"model{source.suffix}").write_bytes(source.read_bytes())
    (tmp_path / "other.data").write_bytes(bytes(1_000_000))
    guard.check(tmp_path / "model.xml", {}, {})
    limits = Path(f"/proc/{process_of(guard).pid}/limits").read_text().splitlines()
    (data,) = (line.split() for line in limits if line.startswith("Max data size"))
    assert int(data[3]) == 800_000_000 + 6 * sum(path.stat().st_size for path in tmp_path.iterdir())


def test_the_reader_of_a_model_that_hangs_ends_though_nobody_kills_it() -> None:
    request = ReadModel(CORPUS / "onnx" / "reader-hang" / "model.onnx", {}, {}, {}, 0, 0.1)
    ours, theirs = Pipe()
    with ours, theirs, subprocess.Popen(READER_COMMAND, stdin=theirs.fileno()) as process:
        for content in (Request[None](), request):
            ours.send(content)
        assert process.wait(60) == 1


def test_a_process_that_was_not_asked_for_long_is_replaced_before_it_ends(
    guard: ModelGuard, tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.check(tiny_resnet, {}, {})
    guard.check(tiny_resnet, {}, {})
    process, now_s = process_of(guard), time.monotonic()
    monkeypatch.setattr("hsdag.ir.graph.model_guard.time.monotonic", lambda: now_s + IDLE_S)
    assert guard.begin().num_starts == 2
    assert process.wait(0.0) is not None


def test_shapes_are_given_where_they_can_do_no_harm(guard: ModelGuard, tiny_resnet: Path) -> None:
    with pytest.raises(ModelError, match="the model does not take the given shapes of its inputs"):
        guard.check(tiny_resnet, {"": (1, 2**31 - 1, 1, 1)}, {"other": (1,)})
