"""What lies beside an exported model: programs that run it, and a page with the lines to paste into others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any
from xml.sax.saxutils import quoteattr

import openvino as ov

from hsdag.exports.library import SOURCES
from hsdag.ir.device import DeviceSpec, plugin_library

COMPILING = """
The library is not compiled yet, for want of a compiler where the folder was made. With CMake and one:

```bash
cmake -S extension -B build -DOpenVINO_DIR="$(python -c 'import openvino.utils as u; print(u.get_cmake_path())')" \\
  && cmake --build build && cp build/*.so .
```
"""

ADDED = """
OpenVINO does not have {names} by itself: `plugins.xml` says what they are. Python and C++ programs give it to their
core, as below. For programs that cannot be changed, copy it beside `libopenvino.so`.
"""

GENAI = """
## OpenVINO GenAI

```python
import openvino_genai

pipeline = openvino_genai.{pipeline}(".", "{device}", extensions=["./libhsdag.so"])
print(pipeline.generate("Hello", max_new_tokens=100))
```
"""

AFFINITIES = "Every op has its device in the file; the library has OpenVINO read it."
ONE_OP = (
    "The model is one op, which the CPU plugin runs; what it holds, in the folder `parts-...`, runs on {devices}, "
    "for several inferences at a time where there are several streams."
)


@dataclass(frozen=True)
class Usage:
    """How programs compile the model: for which device, with properties, and which devices have to be added before.

    ``inside`` are the devices that one op uses, for so many inferences at a time as keep them busy, or as there are.
    """

    name: str
    model: str
    device: str
    properties: Mapping[str, Any]
    added: tuple[DeviceSpec, ...] = ()
    inside: tuple[str, ...] = ()
    num_requests: int = 0
    pipeline: str = ""
    """The class of OpenVINO GenAI that runs the folder as placed."""
    images: tuple[str, ...] = ()
    """Inputs that benchmark_app would take for images, and convert from u8, by ops that have no device."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Of each input, in the order of the model's, an inference that it was placed for; none where shapes are fixed."""


def write_usage(usage: Usage, folder: Path, *, is_compiled: bool) -> None:
    """Write the page, the programs, and the file of devices that have to be added."""
    if usage.added:
        (folder / "plugins.xml").write_text(plugins_text(usage), encoding="utf-8")
    for name, change in (("run.py", _python), ("main.cpp", _cpp)):
        (folder / name).write_text(change((SOURCES / name).read_text(encoding="utf-8"), usage), encoding="utf-8")
    page = Template((SOURCES / "README.md.in").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(page.substitute(_words(usage, is_compiled)), encoding="utf-8")


def plugins_text(usage: Usage) -> str:
    """The devices to be added, as ``ov::Core`` reads them."""
    lines = ["<ie>", "  <plugins>"]
    for spec in usage.added:
        name, library = spec.openvino_name.partition(".")[0], plugin_library(spec.library_name)
        lines.append(f"    <plugin name={quoteattr(name)} location={quoteattr(library)}>")
        given = (f"<property key={quoteattr(key)} value={quoteattr(value)}/>" for key, value in spec.properties.items())
        lines += [f"      <properties>{''.join(given)}</properties>", "    </plugin>"]
    return "\n".join([*lines, "  </plugins>", "</ie>", ""])


def _python(text: str, usage: Usage) -> str:
    text = text.replace('MODEL = "model.xml"', f"MODEL = {usage.model!r}").replace('"CPU"', repr(usage.device), 1)
    text = text.replace("dict[str, Any] = {}", f"dict[str, Any] = {pformat(dict(usage.properties), width=100)}", 1)
    return text.replace("list[list[int]] = []", f"list[list[int]] = {[list(sizes) for sizes in usage.sizes]}", 1)


def _cpp(text: str, usage: Usage) -> str:
    text = text.replace('"model.xml"', literal(usage.model), 1).replace('"CPU"', literal(usage.device), 1)
    text = text.replace("kProperties = {}", f"kProperties = {_any_map(usage.properties)}", 1)
    sizes = ", ".join(f"ov::Shape{{{', '.join(map(str, each))}}}" for each in usage.sizes)
    return text.replace("kSizes = {}", f"kSizes = {{{sizes}}}", 1)


def _any_map(properties: Mapping[str, Any]) -> str:
    """Properties in C++, those of single devices among them."""
    items = []
    for key, value in properties.items():
        shown = f"ov::AnyMap{_any_map(value)}" if isinstance(value, Mapping) else f"std::string({literal(value)})"
        items.append(f"{{{literal(key)}, {shown}}}")
    return f"{{{', '.join(items)}}}"


def literal(text: str) -> str:
    """A C++ string literal with the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _words(usage: Usage, is_compiled: bool) -> dict[str, str]:
    """What stands in the page in place of its variables."""
    streams = f" -hint none -nstreams {usage.num_requests} -nireq {usage.num_requests}" if usage.num_requests else ""
    served = re.sub(r"[^\w.-]", "_", usage.name, flags=re.ASCII) or "model"
    names = ", ".join(spec.openvino_name for spec in usage.added)
    return {
        "about": ONE_OP.format(devices=" and ".join(usage.inside)) if usage.inside else AFFINITIES,
        "benchmark": (streams or " -hint none") + f' -iop "{",".join(usage.images)}"' * bool(usage.images),
        "compiling": "" if is_compiled else COMPILING,
        "config": json.dumps(served_config(usage, served), indent=1),
        "core": '"plugins.xml"' if usage.added else "",
        "device": usage.device,
        "devices": ADDED.format(names=names) if usage.added else "",
        "genai": GENAI.format(pipeline=usage.pipeline, device=usage.device) if usage.pipeline else "",
        "model": usage.model,
        "name": usage.name,
        "python": pformat(dict(usage.properties), width=100),
        "served": served,
        "stem": usage.model.removesuffix(".xml"),
        "version": ov.get_version().partition("-")[0],
    }


def served_config(usage: Usage, name: str) -> dict[str, Any]:
    """The configuration with which Model Server serves the model.

    Its schema takes no object for a property: those of single devices are a text, which OpenVINO reads.
    """
    config: dict[str, Any] = {"name": name, "base_path": f"REPOSITORY/{name}", "target_device": usage.device}
    if usage.num_requests:
        config |= {"nireq": usage.num_requests, "plugin_config": {"NUM_STREAMS": str(usage.num_requests)}}
    elif usage.properties:
        given = usage.properties.items()
        config["plugin_config"] = {key: _text_of(x) if isinstance(x, Mapping) else x for key, x in given}
    return {"model_config_list": [{"config": config}]}


def _text_of(properties: Mapping[str, Any]) -> str:
    """Properties as a text, as OpenVINO reads it: it passes over what has quotes or blanks without a word."""
    items = (f"{key}:{_text_of(x) if isinstance(x, Mapping) else x}" for key, x in properties.items())
    return f"{{{','.join(items)}}}"
