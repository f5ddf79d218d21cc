"""Tables: whole and plain in a pipe, coloured on a terminal."""

from __future__ import annotations

import pytest

from hsdag.cli.output import megabytes, print_table

NAME = "placement_with_a_name_that_is_longer_than_forty_characters/:smile:[bold]"
ROWS = [["CPU *", "1.5", "CPU:20"], [NAME, "13.5", "A:1 B:2 " * 8]]
GREEN = "\x1b[1;32m"


def printed(capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, **environment: str) -> str:
    """What is printed where a terminal would have so many columns; FORCE_COLOR makes one of a pipe."""
    patch.setenv("COLUMNS", "40")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        patch.delenv(name, raising=False)
    for name, value in environment.items():
        patch.setenv(name, value)
    print_table("times", ["candidate", "median ms", "ops per device"], ROWS)
    return capsys.readouterr().out


def test_lines_are_plain_and_whole_with_figures_to_the_right_in_a_pipe_and_the_answer_has_a_colour_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    title, _, answer, other = printed(capsys, monkeypatch).splitlines()
    assert (title, answer.split(), other.split()) == (
        "times", ["CPU", "*", "1.5", "CPU:20"], [NAME, "13.5", *8 * ["A:1", "B:2"]],
    )  # fmt: skip
    assert answer.index("1.5") - 1 == other.index("13.5")
    assert answer.index("CPU:20") == other.index("A:1")
    coloured = printed(capsys, monkeypatch, FORCE_COLOR="1", TERM="xterm-256color")
    assert f"{GREEN}CPU *" in coloured
    assert f"{GREEN}{NAME}" not in coloured
    assert GREEN not in printed(capsys, monkeypatch, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")


@pytest.mark.parametrize(("size", "text"), [(None, "-"), (0, "0"), (9.99e6, "10"), (1e7, "10"), (1.25e6, "1.2")])
def test_bytes_have_two_digits_at_least(size: int | None, text: str) -> None:
    assert megabytes(size) == text
