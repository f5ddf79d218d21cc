"""Shell completion: commands and options."""

from __future__ import annotations

import pytest

from hsdag.cli.app import run


def completed(capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash is offered at the end of a line."""
    patch.setenv("_HSDAG_COMPLETE", "complete_bash")
    patch.setenv("COMP_WORDS", line)
    patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hsdag pl", ["place"]),
        ("hsdag models b", ["build"]),
        ("hsdag place m.xml --execu", ["--executor"]),
    ],
)
def test_a_line_is_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    assert completed(capsys, monkeypatch, line) == expected
