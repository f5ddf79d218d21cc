"""Objectives and export formats of other packages, by their entry points."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from hsdag import exports
from hsdag.runtime import objectives
from hsdag.runtime.objectives import LATENCY, find_objective, objective_names


def installed(monkeypatch: pytest.MonkeyPatch, home: ModuleType, name: str, group: str) -> ModuleType:
    """A module of another package with an entry point of a group, which ``home`` looks for."""
    module = ModuleType("other_package_here")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known = {group: [EntryPoint(name, module.__name__, group)]}
    monkeypatch.setattr(home, "entry_points", lambda group: known.get(group, []))
    return module


def test_an_objective_of_another_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch, objectives, "swift", "hsdag.objectives")
    module.OBJECTIVE = LATENCY  # type: ignore[attr-defined]
    assert "swift" in objective_names()
    assert find_objective("swift") is LATENCY


def test_an_export_format_of_another_package_is_listed_and_has_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch, exports, "yaml", "hsdag.exports")
    assert "yaml" in exports.export_formats()
    assert exports.module_of("yaml") == module.__name__
    assert exports.module_of("csv") == "hsdag.exports.documents"
