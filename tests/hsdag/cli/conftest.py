"""What tests of commands share: how a user's mistake is answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hsdag.cli.app import run


@pytest.fixture
def complains(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command line, checks the manner of the complaint, and gives its text."""

    def check(*arguments: object) -> str:
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert code == 2, captured
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert [line.startswith("hsdag: ") for line in lines] == [False] * (len(lines) - 1) + [True], captured.err
        assert "defect" not in captured.err
        assert "Traceback" not in captured.err
        return lines[-1]

    return check
