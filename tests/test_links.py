"""Folders at the top belong to the package: by links where it is installed, and without any in a fresh clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import links

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("hsdag", *links.FOLDERS):
        (tmp_path / "checkout" / folder).mkdir(parents=True)
    (tmp_path / "checkout" / "ir" / "errors.py").touch()
    return tmp_path / "checkout"


def test_links_are_made_once_and_move_with_the_checkout(checkout: Path) -> None:
    links.make_links(checkout)
    made = {name: (checkout / "hsdag" / name).lstat() for name in links.FOLDERS}
    links.make_links(checkout)
    assert made == {name: (checkout / "hsdag" / name).lstat() for name in links.FOLDERS}
    moved = checkout.rename(checkout.with_name("moved"))
    assert (moved / "hsdag" / "ir" / "errors.py").samefile(moved / "ir" / "errors.py")


def test_a_link_to_another_checkout_or_to_nothing_is_replaced(checkout: Path) -> None:
    (checkout.parent / "other").mkdir()
    (checkout / "hsdag" / "ir").symlink_to(checkout.parent / "other")
    (checkout / "hsdag" / "models").symlink_to(checkout.parent / "gone")
    links.make_links(checkout)
    assert all((checkout / "hsdag" / name).samefile(checkout / name) for name in links.FOLDERS)
    assert (checkout.parent / "other").is_dir()


def test_compiled_files_of_a_folder_that_has_moved_make_room_and_others_do_not(checkout: Path) -> None:
    compiled = checkout / "hsdag" / "ir" / "graph" / "__pycache__"
    compiled.mkdir(parents=True)
    for name in ("build.cpython-311.pyc", "build.kernel-1.py311.1.nbc"):  # of Python, and of numba
        (compiled / name).touch()
    links.make_links(checkout)
    assert (checkout / "hsdag" / "ir" / "errors.py").exists()
    (checkout / "hsdag" / "runtime").unlink()
    (checkout / "hsdag" / "runtime").mkdir()
    (checkout / "hsdag" / "runtime" / "mine.py").touch()
    with pytest.raises(FileExistsError, match="hsdag/runtime has to be a link, and holds files: move them away"):
        links.make_links(checkout)


def test_an_unpacked_sdist_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hsdag" / "ir").mkdir(parents=True)
    (tmp_path / "hsdag" / "ir" / "errors.py").touch()
    links.make_links(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py")] == ["hsdag/ir/errors.py"]


def test_windows_gets_junctions_with_absolute_paths(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[str, str]]()

    def create_junction(folder: str, link: str) -> None:
        calls.append((folder, link))
        Path(link).symlink_to(folder)

    monkeypatch.setattr(links, "WINDOWS", True)
    monkeypatch.setitem(sys.modules, "_winapi", SimpleNamespace(CreateJunction=create_junction))
    links.make_links(checkout)
    assert calls == [(str(checkout / name), str(checkout / "hsdag" / name)) for name in links.FOLDERS]
    moved = checkout.rename(checkout.with_name("moved"))  # junctions lead to where it was
    links.make_links(moved)
    assert calls[4:] == [(str(moved / name), str(moved / "hsdag" / name)) for name in links.FOLDERS]
    assert all((moved / "hsdag" / name).samefile(moved / name) for name in links.FOLDERS)


IMPORTS = """
import subprocess
import hsdag.features, hsdag.models, hsdag.runtime.objectives
from hsdag.base import processes

print(processes.__file__, flush=True)
subprocess.run(processes.python_command("from hsdag.ir import elements; print(elements.__file__)"), check=True)
"""


def not_committed(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__" or Path(folder, name).is_symlink()]


def test_a_checkout_that_was_never_installed_is_imported_from_its_folders(tmp_path: Path) -> None:
    for folder in ("hsdag", *links.FOLDERS):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=not_committed)
    done = subprocess.run(
        [sys.executable, "-P", "-c", IMPORTS], cwd=tmp_path.parent, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [
        str(tmp_path / "hsdag" / "base" / "processes.py"),
        str(tmp_path / "ir" / "elements.py"),
    ]
