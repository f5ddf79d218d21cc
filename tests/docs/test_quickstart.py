"""The quickstart as a reader does it: its commands and programs one after another, in a clone; `make test-docs`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, snippets_of


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of what is committed, with the environment that is here, which takes minutes to install."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "hsdag")], check=True)
    (tmp_path / "hsdag" / ".venv").symlink_to(ROOT / ".venv")
    for source in ("pyproject.toml", "constraints.txt"):
        os.utime(tmp_path / "hsdag" / source, (0, 0))  # older than the environment
    return tmp_path / "hsdag"


def test_every_command_of_the_quickstart_works_as_it_is_printed(request: pytest.FixtureRequest, clone: Path) -> None:
    if not request.config.getoption("--literal", default=False):
        pytest.skip("minutes; make test-docs does it")
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for snippet in snippets_of(ROOT / "docs" / "quickstart.md"):
        steps = [["python", "-c", snippet.text]]
        if snippet.language != "python":
            steps = [["bash", "-c", command] for command, _ in snippet.commands()]
        for step in steps if snippet.kind == "run" else ():
            subprocess.run(step, cwd=clone, env={**os.environ, "PATH": path}, check=True)
