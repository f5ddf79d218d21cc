"""Tables: whole and plain in a pipe, coloured on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

NAME = "placement_with_a_name_that_is_longer_than_forty_characters/:smile:[bold]"
CODE = f"""
from hsdag.cli.output import print_table, say
rows = [["CPU *", "1.25", "CPU:20"], [{NAME!r}, "13.5", "A:1 B:2 " * 8]]
print_table("times", ["candidate", "median ms", "ops per device"], rows)
"""
CELLS = ("CPU *", NAME, "1.25", "13.5", ("A:1 B:2 " * 8).strip())


def printed(columns: int, **environment: str) -> str:
    """What is printed on a terminal of so many columns."""
    master, slave = pty.openpty()
    inherited = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    settings = {**inherited, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment}
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=slave, env=settings) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                text += (read := os.read(master, 65536))
            except OSError:  # the terminal was closed
                break
            if not read:
                break
    os.close(master)
    assert process.returncode == 0
    return text.decode().replace("\r\n", "\n")


def piped(**environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-c", CODE]
    settings = {**inherited, "COLUMNS": "40", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=settings).stdout


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_of_any_width_shows_every_cell_whole(columns: int) -> None:
    text = printed(columns, NO_COLOR="1")
    assert all(cell in text for cell in CELLS)
    assert len(text.splitlines()) == 4


def test_a_pipe_gets_plain_lines_of_full_width() -> None:
    text = piped()
    assert "\x1b" not in text
    assert [line.split()[0] for line in text.splitlines()] == ["times", "candidate", "CPU", NAME]
    assert all(cell in text for cell in CELLS)


def test_the_answer_has_a_colour_on_a_terminal_alone_and_a_star_everywhere() -> None:
    green = "\x1b[1;32m"
    assert f"{green}CPU *" in printed(200)
    assert f"{green}{NAME}" not in printed(200)
    assert green not in printed(200, NO_COLOR="1")
    assert f"{green}CPU *" in piped(FORCE_COLOR="1", TERM="xterm-256color")
    assert "CPU *" in piped()
