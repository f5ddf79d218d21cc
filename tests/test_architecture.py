"""The house: links resolve, imports point one way, no bare name is imported, files stay short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hsdag

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("ir", "features", "runtime", "models")
MAY_IMPORT = {
    "ir": {"ir"},
    "features": {"features", "ir"},
    "models": {"models", "ir"},
    "runtime": {"runtime", "ir"},
}
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
OWN = sorted(p for p in (ROOT / "hsdag").rglob("*.py") if p.relative_to(ROOT / "hsdag").parts[0] not in PARTS)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_the_links_of_the_package_resolve(part: str) -> None:
    assert (ROOT / "hsdag" / part).resolve() == ROOT / part


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("hsdag.")}
    assert ours <= MAY_IMPORT[part]
    assert "hsdag" not in imported_modules(path)


@pytest.mark.parametrize("path", [*SOURCES, *OWN], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_bare_name_is_imported_and_files_stay_short(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported_modules(path)} & set(PARTS)
    assert len(path.read_text().splitlines()) <= 400


def test_placers_and_learning_know_no_openvino() -> None:
    for folder in ("placers", "learning"):
        for path in (ROOT / "hsdag" / folder).glob("*.py"):
            assert not any(name.split(".")[0] == "openvino" for name in imported_modules(path)), path


def test_the_public_names_are_these() -> None:
    assert hsdag.__all__ == ["Outcome", "PlaceOptions", "Placement", "__version__", "compile_work_conserving", "place"]
