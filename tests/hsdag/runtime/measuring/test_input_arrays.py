"""InputArrays: what an .npz file may hold, and that nothing in it is executed."""

from __future__ import annotations

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


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "in.npz", x=np.arange(6.0).reshape(2, 3), s=np.array(["ab", "c"]))
    arrays = InputArrays(tmp_path / "in.npz")
    assert arrays.names == {"x", "s"}
    assert arrays.read("x", (2, 3)).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert arrays.read("s", (2,)).tolist() == ["ab", "c"]
    with pytest.raises(HsdagError, match=r"needs an array 'x' of shape \[6\]"):
        arrays.read("x", (6,))
    with pytest.raises(HsdagError, match="needs an array 'y' of shape"):
        arrays.read("y", (2,))


def test_what_is_no_numbers_or_strings_is_refused_and_objects_unread(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([Harm()], dtype=object), d=np.zeros(1, "<M8[s]"))
    arrays = InputArrays(tmp_path / "in.npz")
    with pytest.raises(HsdagError, match=r"the array 'x' of .* cannot be read: Object arrays"):
        arrays.read("x", (1,))
    with pytest.raises(HsdagError, match=r"has an array 'd' of datetime64.*, not of numbers or strings"):
        arrays.read("d", (1,))


@pytest.mark.parametrize("content", [b"\x93NUMPY\x01\x00", b"\x93NUMPY\x09\x00"])
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(HsdagError, match=r"the array 'x' of .* cannot be read"):
        InputArrays(tmp_path / "in.npz").read("x", (4,))
    for other in (b"x", b""):
        (tmp_path / "in.npz").write_bytes(other)
        with pytest.raises(HsdagError, match=r"is not an \.npz file"):
            InputArrays(tmp_path / "in.npz")
