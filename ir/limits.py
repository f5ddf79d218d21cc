"""What the documents that are read may be: their size, and how deep they nest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hsdag.ir.errors import FileFormatError

LARGEST_TEXT_BYTES = 500_000_000
"""Of a JSON or TOML file; the problem of a graph of 100,000 ops takes about 30 million."""

DEEPEST_NESTING = 100
"""Objects and lists inside one another; what hsdag writes nests less than 15 deep."""


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_limited(path: Path) -> bytes:
    """The content of a file, which may be a pipe. Raises FileFormatError where it is too large, and OSError."""
    with path.open("rb") as file:
        content = file.read(LARGEST_TEXT_BYTES + 1)
    if len(content) > LARGEST_TEXT_BYTES:
        raise FileFormatError(f"{path} is larger than {LARGEST_TEXT_BYTES} bytes, the most that hsdag reads of a text")
    return content


def check_json(value: Any, text: str, origin: str) -> None:
    """Raise FileFormatError, naming ``origin``, for a JSON value that nests too deep, or whose texts are none.

    ``text`` is the document that it was read from.
    """
    _check_nesting(value, origin)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):x}"
            raise FileFormatError(f"{origin}: {half} is half of a character, which no text can have") from error


def _check_nesting(value: Any, origin: str) -> None:
    level = [value]
    for _ in range(DEEPEST_NESTING):
        held = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for values in held for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise FileFormatError(f"{origin}: objects and lists are nested more than {DEEPEST_NESTING} deep")
