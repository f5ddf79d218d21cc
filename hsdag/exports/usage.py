"""Write what accompanies an exported model: programs that run it, and a page with code to paste into others."""

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
The library is not compiled yet, because there was no compiler where this folder was created. With CMake and a compiler:

```bash
cmake -S extension -B build -DOpenVINO_DIR="$(python -c 'import openvino.utils as u; print(u.get_cmake_path())')" \\
  && cmake --build build && cp build/*.so .
```
"""

ADDED = """
OpenVINO does not have {names} by itself: `plugins.xml` defines them. Python and C++ programs pass this file to their
core, as below. For programs that you cannot change, copy it next to `libopenvino.so`.
"""

GENAI = """
## OpenVINO GenAI

```python
import openvino_genai

pipeline = openvino_genai.{pipeline}(".", "{device}", extensions=["./libhsdag.so"])
print(pipeline.generate("Hello", max_new_tokens=100))
```
"""

AFFINITIES = "The file stores the device of every op, and the library makes OpenVINO read it."
ONE_OP = (
    "The model is a single op, which the CPU plugin runs. The parts in the folder `parts-...` run on {devices}, for "
    "several inferences at a time if there are several streams."
)


@dataclass(frozen=True)
class Usage:
    """How programs compile and run an exported model.

    Args:
        device: Device to compile the model for, with ``properties``.
        added: Devices that a program must add to OpenVINO first.
        inside: Devices that the single op uses.
        num_requests: Number of inferences that the copies run at a time; 0 without copies.
    """

    name: str
    model: str
    device: str
    properties: Mapping[str, Any]
    added: tuple[DeviceSpec, ...] = ()
    inside: tuple[str, ...] = ()
    num_requests: int = 0
    pipeline: str = ""
    """OpenVINO GenAI class that runs the folder as placed, or ""."""
    images: tuple[str, ...] = ()
    """Inputs that benchmark_app would take for images and convert from u8, by ops that have no device."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Shape of each input in one inference that the model was placed for; empty if the shapes are fixed."""


def write_usage(usage: Usage, folder: Path, *, is_compiled: bool) -> None:
    """Write the page, the programs, and, if devices must be added, ``plugins.xml``."""
    if usage.added:
        (folder / "plugins.xml").write_text(plugins_text(usage), encoding="utf-8")
    for name, change in (("run.py", _python), ("main.cpp", _cpp)):
        (folder / name).write_text(change((SOURCES / name).read_text(encoding="utf-8"), usage), encoding="utf-8")
    page = Template((SOURCES / "README.md.in").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(page.substitute(_words(usage, is_compiled)), encoding="utf-8")


def plugins_text(usage: Usage) -> str:
    """Return the devices to be added in the form that ``ov::Core`` reads."""
    lines = ["<ie>", "  <plugins>"]
    for spec in usage.added:
        name, library = spec.openvino_name.partition(".")[0], plugin_library(spec.library_name)
        lines.append(f"    <plugin name={quoteattr(name)} location={quoteattr(library)}>")
        pairs = (f"<property key={quoteattr(key)} value={quoteattr(value)}/>" for key, value in spec.properties.items())
        lines += [f"      <properties>{''.join(pairs)}</properties>", "    </plugin>"]
    return "\n".join([*lines, "  </plugins>", "</ie>", ""])


def _python(text: str, usage: Usage) -> str:
    """Fill the model, device, properties and sizes into the Python program."""
    text = text.replace('MODEL = "model.xml"', f"MODEL = {usage.model!r}").replace('"CPU"', repr(usage.device), 1)
    text = text.replace("dict[str, Any] = {}", f"dict[str, Any] = {pformat(dict(usage.properties), width=100)}", 1)
    return text.replace("list[list[int]] = []", f"list[list[int]] = {[list(sizes) for sizes in usage.sizes]}", 1)


def _cpp(text: str, usage: Usage) -> str:
    """Fill the model, properties, device and sizes into the C++ program."""
    text = text.replace('"model.xml"', literal(usage.model), 1).replace('"CPU"', literal(usage.device), 1)
    text = text.replace("kProperties = {}", f"kProperties = {_any_map(usage.properties)}", 1)
    sizes = ", ".join(f"ov::Shape{{{', '.join(map(str, shape))}}}" for shape in usage.sizes)
    return text.replace("kSizes = {}", f"kSizes = {{{sizes}}}", 1)


def _any_map(properties: Mapping[str, Any]) -> str:
    """Format properties, including nested ones of single devices, as C++."""
    items = []
    for key, value in properties.items():
        shown = f"ov::AnyMap{_any_map(value)}" if isinstance(value, Mapping) else f"std::string({literal(value)})"
        items.append(f"{{{literal(key)}, {shown}}}")
    return f"{{{', '.join(items)}}}"


def literal(text: str) -> str:
    """Return a C++ string literal of the UTF-8 bytes of ``text``; all but plain ASCII as three octal digits."""
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(shown) + '"'


def _words(usage: Usage, is_compiled: bool) -> dict[str, str]:
    """Return the values of the page's variables."""
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
    """Return the configuration with which OpenVINO Model Server serves the model.

    Its schema takes no object for a property: the properties of single devices are a text, which OpenVINO reads.
    """
    config: dict[str, Any] = {"name": name, "base_path": f"REPOSITORY/{name}", "target_device": usage.device}
    if usage.num_requests:
        config |= {"nireq": usage.num_requests, "plugin_config": {"NUM_STREAMS": str(usage.num_requests)}}
    elif usage.properties:
        properties = usage.properties.items()
        config["plugin_config"] = {key: _text_of(x) if isinstance(x, Mapping) else x for key, x in properties}
    return {"model_config_list": [{"config": config}]}


def _text_of(properties: Mapping[str, Any]) -> str:
    """Return properties as a text for OpenVINO, which ignores, without a message, what has quotes or blanks."""
    items = (f"{key}:{_text_of(x) if isinstance(x, Mapping) else x}" for key, x in properties.items())
    return f"{{{','.join(items)}}}"
