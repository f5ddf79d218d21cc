"""Mutations: a valid file made wrong, by its structure where its name tells one, else by its bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

DEEP = 5_000
"""Levels of nesting, more than any reader follows."""

_DEEP_JSON = "[" * DEEP + "]" * DEEP
WORDS = (
    *("", " ", "a", "a" * 70_000, "\x00", "\ud800", "é\u202e", "nan", "../../../../tmp/escaped", "/etc/passwd", "%s%n"),
    *("CPU", "CUDA:0", "0", "-1", "1e999", "9" * 5_000, "🙂", "[", "}", "a\nb", "HETERO:CPU,GPU", "$(true)"),
)
_NUMBERS = (
    *(0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.5, 1e-320, 1e308, -0.0),
    *map(float, ("inf", "-inf", "nan")),
)
_SIMPLE: tuple[Any, ...] = (None, True, False, [], {}, [None], {"a": None}, [[]])
_TEXTS = (b"", b"null", b"[]", b"{}", _DEEP_JSON.encode(), b"\xef\xbb\xbf{}", b"\xff\xfe", b"{" * DEEP, b'{"a":' * DEEP)


def mutate(name: str, content: bytes, rng: Random) -> bytes:
    """The content of a file of that name with a few things wrong."""
    if rng.random() < 0.02:
        return rng.choice(_TEXTS)
    if rng.random() < 0.03:
        return rng.randbytes(rng.choice((1, 8, 100, 3_000)))
    of_structure = _STRUCTURES.get(name.rpartition(".")[2])
    if of_structure is not None and rng.random() < 0.75:
        try:
            content = of_structure(content, rng)
        except (ValueError, KeyError, IndexError, SyntaxError, RecursionError):
            return _of_bytes(content, rng)
        if rng.random() < 0.85:
            return content
    return _of_bytes(content, rng)


def _of_bytes(content: bytes, rng: Random) -> bytes:
    """Bytes replaced, pieces cut or repeated, and the end cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length, kind = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 64)), rng.randrange(5)
        if kind == 0:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 3:
            data[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, struct.pack("<q", 2**40)))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def _of_json(content: bytes, rng: Random) -> bytes:
    """Values of a document replaced, removed, copied, doubled or renamed."""
    root = {"root": json.loads(content)}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(root)
        (holder, key), (other, other_key) = rng.choice(places), rng.choice(places)
        kind = rng.randrange(7)
        if kind <= 2:
            holder[key] = rng.choice((rng.choice(_NUMBERS), rng.choice(WORDS), rng.choice(_SIMPLE)))
        elif kind == 3 and holder is not root:
            del holder[key]
        elif kind == 4:
            holder[key] = json.loads(json.dumps(other[other_key]))
        elif kind == 5 and isinstance(holder, dict) and holder is not root:
            holder[rng.choice(WORDS)] = holder.pop(key)
        else:
            holder[key] = [holder[key]] * rng.choice((1, 2, 100))
    text = json.dumps(root["root"])
    return (text.replace("null", _DEEP_JSON, 1) if rng.random() < 0.03 else text).encode()


def _of_json_lines(content: bytes, rng: Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = _of_json(lines[at], rng)
    return b"\n".join(lines) + rng.choice((b"\n", b"\n", b""))


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Every holder and key of a document."""
    found, left = [], [root]
    while left:
        holder = left.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                left.append(holder[key])
    return found


_STRUCTURES: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _of_json,
    "jsonl": _of_json_lines,
}
"""By the end of a file's name."""
