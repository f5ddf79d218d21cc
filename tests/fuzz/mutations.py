"""Mutations: a valid file made wrong, by its structure where its name tells one, else by its bytes."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any
from xml.etree import ElementTree

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
_LITERALS = (
    *'nan inf -1 0 1e400 "" [] {} true "a" 1979-05-27'.split(),
    *("9" * 5_000, "[1, [2]]", "[" * 999),
)
_TEXTS = (b"", b"null", b"[]", b"{}", _DEEP_JSON.encode(), b"\xef\xbb\xbf{}", b"\xff\xfe", b"{" * DEEP, b'{"a":' * DEEP)
_LAUGHS = "<!DOCTYPE net [" + '<!ENTITY l0 "lol">' + "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10)
) + "]>"  # fmt: skip


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
        except (ValueError, KeyError, IndexError, SyntaxError, zipfile.BadZipFile, RecursionError):
            return _of_bytes(content, rng)
        if rng.random() < 0.85:
            return content
    return _of_bytes(content, rng)


def _of_bytes(content: bytes, rng: Random) -> bytes:
    """Bits flipped, bytes replaced, pieces cut, copied or moved, and the end cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 4:
            data[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, struct.pack("<q", 2**40)))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def _of_json(content: bytes, rng: Random) -> bytes:
    """Values of a document replaced, removed, doubled, swapped or renamed."""
    root = {"root": json.loads(content)}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(root)
        holder, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind <= 2:
            holder[key] = _value(rng)
        elif kind == 3 and holder is not root:
            del holder[key]
        elif kind == 4:
            other, other_key = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[other_key]))
        elif kind == 5 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
        elif kind == 6 and isinstance(holder, dict) and holder is not root:
            holder[rng.choice(WORDS)] = holder.pop(key)
        elif kind == 7:
            is_small = not isinstance(holder[key], dict | list) and len(str(holder[key])) < 100
            holder[key] = [holder[key]] * (rng.choice((1, 2, 1_000)) if is_small else 2)
    text = json.dumps(root["root"])
    if rng.random() < 0.03:
        text = text.replace("null", _DEEP_JSON, 1) if "null" in text else text.replace('"', "'", 1)
    if rng.random() < 0.03 and text.startswith("{"):
        text = text[:1] + text[1:-1] + ("," if len(text) > 2 else "") + text[1:]  # every key twice
    return text.encode()


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


def _value(rng: Random) -> Any:
    simple: tuple[Any, ...] = (None, True, False, [], {}, [None], {"a": None}, [[]])
    return rng.choice((rng.choice(_NUMBERS), rng.choice(WORDS), rng.choice(simple)))


def _of_lines(content: bytes, rng: Random) -> bytes:
    """Lines ``key = value`` of a text with other values, and lines removed, doubled or swapped."""
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        key, sign, _old = lines[at].partition("=")
        if kind <= 2 and sign:
            lines[at] = f"{key}= {rng.choice(_LITERALS)}"
        elif kind == 3:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif kind == 4 and len(lines) > 1:
            del lines[at]
        else:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines).encode()


def _of_xml(content: bytes, rng: Random) -> bytes:
    """Attributes and texts replaced, elements removed, doubled, moved or nested."""
    root = ElementTree.fromstring(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        parents = [element for element in root.iter() if len(element)]
        parent = rng.choice(parents) if parents else root
        element, kind = rng.choice(list(root.iter())), rng.randrange(8)
        if kind <= 3 and element.attrib:
            key = rng.choice(list(element.attrib))
            others = [e.attrib[key] for e in root.iter() if key in e.attrib]
            element.set(key, rng.choice((rng.choice(others), str(rng.choice(_NUMBERS)), _xml_word(rng))))
        elif kind == 4 and len(parent):
            parent.remove(rng.choice(list(parent)))
        elif kind == 5 and len(parent):
            parent.insert(0, rng.choice(list(parent)))
        elif kind == 6:
            element.text = rng.choice((str(rng.choice(_NUMBERS)), _xml_word(rng)))
        elif element.attrib:
            del element.attrib[rng.choice(list(element.attrib))]
    text = ElementTree.tostring(root, encoding="unicode")
    if rng.random() < 0.02:
        text = _LAUGHS + text.replace('name="', 'name="&l9;', 1)
    if rng.random() < 0.02:
        text = text.replace("<layers>", "<layers>" * DEEP, 1).replace("</layers>", "</layers>" * DEEP, 1)
    return text.encode(errors="replace")


def _xml_word(rng: Random) -> str:
    return "".join(c for c in rng.choice((*WORDS, "f32", "1,-1", "?", "1,3,99999999999", "-2")) if c.isprintable())


def _of_safetensors(content: bytes, rng: Random) -> bytes:
    """Another header, whose length is right or wrong."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.4:
        known = json.loads(header)
        held = known["__metadata__"]
        key = rng.choice(list(held))
        held[key] = _of_json(held[key].encode(), rng).decode()
        header = json.dumps(known).encode()
    elif rng.random() < 0.8:
        header = _of_json(header, rng)
    told = len(header) if rng.random() < 0.85 else rng.choice((0, 1, 2**40, 2**63, 2**64 - 1, len(header) + 1))
    return struct.pack("<Q", told) + header + data


def _of_zip(content: bytes, rng: Random) -> bytes:
    """Members with other bytes or headers, other names, or more of them than there were."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    name = rng.choice(list(members))
    kind = rng.randrange(5)
    if kind == 0:
        members[name] = _of_bytes(members[name], rng)
    elif kind == 1:
        shapes = ("(9999999999, 99)", "(-1,)", "(0,)", "()", "(2**9,)", "((((1,))))", "(1, 'a')", "(1," * 99 + ")" * 99)
        types = ("'|O'", "'<f8'", "'<M8[s]'", "'S99'", "'<U9'", "[('a', '<f4')]", "'|V8'", "'<c16'", "1", "'>f4'")
        header = f"{{'descr': {rng.choice(types)}, 'fortran_order': False, 'shape': {rng.choice(shapes)}}}\n".encode()
        members[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + members[name][-64:]
    elif kind == 2:
        members[rng.choice(("../escaped.npy", "/escaped", "a" * 300, ""))] = members.pop(name)
    elif kind == 3:
        members[name] = members[name] + bytes(rng.choice((1, 1_000_000)))
    else:
        del members[name]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for each, data in members.items():
            packed.writestr(each, data)
    return target.getvalue()


_STRUCTURES: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _of_json,
    "jsonl": _of_json_lines,
    "toml": _of_lines,
    "xml": _of_xml,
    "safetensors": _of_safetensors,
    "npz": _of_zip,
}
"""By the end of a file's name."""
