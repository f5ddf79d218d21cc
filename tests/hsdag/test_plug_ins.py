"""Methods, objectives, export formats and commands of other packages, by their entry points."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import hsdag.cli.app
from hsdag import exports, methods
from hsdag.methods.base import Placer
from hsdag.methods.registry import find_method
from hsdag.runtime.objectives import LATENCY, find_objective, objective_names

Install = Callable[[str, str, str], None]

METHOD = """
from hsdag.methods.anneal.sa import SaPlacer

class OtherPlacer(SaPlacer):
    name = "uphill"
"""


@pytest.fixture(name="install")
def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Has a package as pip leaves it: a module of a text, and an entry point of a group that names it."""

    def install(group: str, name: str, text: str) -> None:
        known = tmp_path / "other_package-1.0.dist-info"
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
        (known / "entry_points.txt").write_text(f"[{group}]\n{name} = other_package_{name}\n")
        (tmp_path / f"other_package_{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        assert [each.name for each in entry_points(group=group)] == [name]
        methods.method_modules.cache_clear()

    yield install
    methods.method_modules.cache_clear()


def test_an_objective_of_another_package_is_found_by_its_name(install: Install) -> None:
    install("hsdag.objectives", "swift", "from hsdag.runtime.objectives import LATENCY as OBJECTIVE")
    assert "swift" in objective_names()
    assert find_objective("swift") is LATENCY


def test_an_export_format_of_another_package_is_listed_and_has_its_module(install: Install) -> None:
    install("hsdag.exports", "yaml", "EXPORTERS = {}")
    assert "yaml" in exports.export_formats()
    assert exports.module_of("yaml") == "other_package_yaml"
    assert exports.module_of("csv") == "hsdag.exports.documents"


def test_a_method_of_another_package_is_listed_and_found(install: Install) -> None:
    install("hsdag.placers", "uphill", METHOD)
    assert "uphill" in methods.method_names()
    found = find_method("uphill")
    assert issubclass(found, Placer)
    assert found.__name__ == "OtherPlacer"


def command_line() -> ModuleType:
    """The command line as a new process loads it."""
    spec = importlib.util.spec_from_file_location("fresh_app", hsdag.cli.app.__file__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


def test_a_command_of_another_package_is_in_the_help_and_runs(install: Install) -> None:
    install(
        "hsdag.commands", "greet", 'def greet(name: str) -> None:\n    "Greet somebody."\n    print("hello", name)\n'
    )
    runner, app = CliRunner(), command_line().app
    assert "Greet somebody." in runner.invoke(app, ["--help"]).output
    ran = runner.invoke(app, ["greet", "you"])
    assert (ran.exit_code, ran.output) == (0, "hello you\n")
