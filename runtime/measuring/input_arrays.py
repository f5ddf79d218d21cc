"""InputArrays: the arrays of an .npz file, of which nothing is unpacked before its type and size are known."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.errors import HsdagError

LARGEST_ITEM_BYTES = 65_536
"""Of one element: strings have the length of the longest."""

KINDS = "biufcSU"
"""Types of elements by NumPy's letters: numbers and strings. Objects would be pickled, and are never read."""

_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, ValueError, SyntaxError, OSError, EOFError, KeyError),
    *(NotImplementedError, RuntimeError, OverflowError, MemoryError),
)
"""What damaged archives and headers raise."""


class InputArrays:
    """The arrays of a file by name. Raises HsdagError where it is missing, or is no such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self.names = frozenset(name.removesuffix(".npy") for name in archive.namelist())
        except FileNotFoundError as error:
            raise HsdagError(f"no such file: {path}; give arrays named like the inputs as an .npz file") from error
        except _BROKEN as error:
            raise HsdagError(f"{path} is not an .npz file ({_line(error)}); numpy.savez writes one") from error

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array of that shape.

        Raises HsdagError where there is none, or its elements are neither numbers nor strings of a sensible length.
        """
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                version = np.lib.format.read_magic(file)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in read_header:
                    raise ValueError(f"version {version} of NumPy's format")
                found, _, dtype = read_header[version](file)
            if name not in self.names or found != shape:
                raise self._lacking(name, shape)
            if dtype.kind not in KINDS or dtype.itemsize > LARGEST_ITEM_BYTES:
                raise HsdagError(f"{self.path} has an array {name!r} of {str(dtype)[:40]}, not of numbers or strings")
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except KeyError as error:
            raise self._lacking(name, shape) from error
        except _BROKEN as error:
            raise HsdagError(f"the array {name!r} of {self.path} is damaged: {_line(error)}") from error

    def _lacking(self, name: str, shape: tuple[int, ...]) -> HsdagError:
        return HsdagError(f"{self.path} needs an array {name!r} of shape {list(shape)} for the model's input")


def _line(error: BaseException) -> str:
    """The first line of what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
