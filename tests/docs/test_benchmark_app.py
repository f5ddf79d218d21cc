"""The page on benchmark_app: every option of the installed tool is on it, and every option of ours exists."""

from __future__ import annotations

import re
from pathlib import Path

import openvino
import pytest
import typer

from hsdag.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measuring.md"
OF_CPP = {"-cache_dir", "-load_from_file", "-mean_values", "-scale_values", "-use_device_mem"}
"""Options of the C++ tool by names that the Python tool has not."""


def rows() -> list[tuple[list[str], str]]:
    """Options of benchmark_app, and the cell on ours."""
    table = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `-")]
    return [(re.findall(r"`(-[\w-]+)`", cells[0]), cells[1].strip("` ")) for cells in table]


def installed() -> set[str]:
    """Options that the benchmark_app of the installed OpenVINO takes; its file is read, not imported."""
    file = Path(openvino.__file__).parent / "tools" / "benchmark" / "parameters.py"
    found = re.findall(r"add_argument\(([^)]*?)(?=action|type=|required)", file.read_text())
    return {option for arguments in found for option in re.findall(r"'(--?\w+)'", arguments)}


def test_every_option_of_benchmark_app_is_on_the_page_once() -> None:
    named = [option for options, _ in rows() for option in options]
    assert len(installed()) > 60
    assert len(named) == len(set(named))
    assert set(named) == installed() | OF_CPP


@pytest.mark.parametrize(("options", "ours"), rows(), ids=lambda value: value[0] if isinstance(value, list) else "")
def test_ours_exists_and_what_has_none_is_not_taken(options: list[str], ours: str) -> None:
    command = typer.main.get_command(app)
    own, bench = command.params, command.commands["bench"].params  # type: ignore[attr-defined]
    taken = {"-h", "--help", *(name for parameter in (*own, *bench) for name in parameter.opts)}
    if ours == "none":
        assert not taken & set(options)
    else:
        assert ours in taken
