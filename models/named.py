"""Workloads by a text that says all about them: ``chainmm``, or ``chainmm[devices=4;size=1024]``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hsdag.ir.errors import OptionError
from hsdag.models.registry import find_workload, is_workload
from hsdag.models.workload import Workload

TEXT_OPTIONS = ("family", "dependence")
"""Options of workloads that are no numbers."""

_NAMED = re.compile(r"([\w-]+)(?:\[([^\[\]]*)\])?")


def names_workload(text: str) -> bool:
    """Whether a text is the name of a workload, with or without options."""
    match = _NAMED.fullmatch(text)
    return match is not None and is_workload(match[1])


def workload_called(text: str, num_devices: int) -> tuple[str, Workload]:
    """The full text and the workload of a text, for ``num_devices`` devices where it does not say for how many.

    Raises OptionError for options that the workload does not take, or values out of range, ModelError for its name.
    """
    match = _NAMED.fullmatch(text)
    spec = find_workload(text if match is None else match[1])
    given = dict(_item(text, item) for item in filter(None, ((match[2] or "") if match else "").split(";")))
    options = parse_workload_options(given)
    if "devices" in spec.options:
        options.setdefault("devices", max(2, num_devices))
    spec.check_options(options)
    body = ";".join(f"{key}={value}" for key, value in options.items())
    workload = spec.build(int(options.get("devices", num_devices)), options)
    return (f"{spec.name}[{body}]" if body else spec.name), workload


def parse_workload_options(given: Mapping[str, str]) -> dict[str, str | int]:
    """Options of workloads from text. Raises OptionError for a text where a whole number is expected."""
    options: dict[str, str | int] = {}
    for name, text in given.items():
        is_number = text.removeprefix("-").isdecimal()
        if not is_number and name not in TEXT_OPTIONS:
            raise OptionError(f"{name} must be a whole number, not {text!r}")
        options[name] = int(text) if is_number else text
    return options


def _item(text: str, item: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals or not key or not value:
        raise OptionError(f"workload {text!r}: {item!r} is not of the form OPTION=VALUE")
    return key, value
