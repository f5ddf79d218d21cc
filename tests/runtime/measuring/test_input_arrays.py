"""InputArrays: nothing of an .npz file is unpacked that is not of the expected size and type."""

from __future__ import annotations

import io
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.errors import HsdagError
from hsdag.runtime.measuring.inferences import InputArrays


class Harm:
    """What runs a program where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise AssertionError('code of the file ran')",)


def header(shape: str, descr: str) -> bytes:
    """An .npy file without data."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def packed(path: Path, content: bytes) -> Path:
    """An .npz file with one member, x."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return path


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "in.npz", x=np.arange(6.0).reshape(2, 3), s=np.array(["ab", "c"]))
    arrays = InputArrays(tmp_path / "in.npz")
    assert arrays.names == {"x", "s"}
    assert arrays.read("x", (2, 3)).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert arrays.read("s", (2,)).tolist() == ["ab", "c"]


def test_pickled_objects_are_refused_unread(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([Harm()], dtype=object))
    with pytest.raises(HsdagError, match=r"an array 'x' of object, not of numbers or strings"):
        InputArrays(tmp_path / "in.npz").read("x", (1,))


def test_an_archive_that_unpacks_to_much_more_than_the_input_takes_no_memory(tmp_path: Path) -> None:
    held = io.BytesIO()
    np.save(held, np.zeros(50_000_000, np.uint8))
    path = packed(tmp_path / "in.npz", held.getvalue())
    del held
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HsdagError, match=r"needs an array 'x' of shape \[4\]"):
        InputArrays(path).read("x", (4,))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(4,)", "'<f4'"), r"the array 'x' of .* is damaged"),
        (header("(4,)", "'S999999999'"), "has an array 'x' of"),
        (header("(4,)", "'|V8'"), "has an array 'x' of"),
        (header("(2**62,)", "'<f4'"), r"the array 'x' of .* is damaged"),
        (b"\x93NUMPY\x09\x00", r"the array 'x' of .* is damaged"),
        (b"", r"the array 'x' of .* is damaged"),
    ],
)
def test_headers_that_lie_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(HsdagError, match=message):
        InputArrays(packed(tmp_path / "in.npz", content)).read("x", (4,))
    (tmp_path / "in.npz").write_bytes(b"x")
    with pytest.raises(HsdagError, match=r"is not an \.npz file"):
        InputArrays(tmp_path / "in.npz")
