"""Shell completion: commands, options and the values of options that have a list of them."""

from __future__ import annotations

import subprocess
import sys

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
        ("hsdag place m.xml --method he", ["heft"]),
        ("hsdag place m.xml --executor w", ["work-conserving"]),
        ("hsdag solve p.json --links e", ["egress"]),
        ("hsdag export p.json --format py", ["python"]),
        ("hsdag models build inception", ["inception_v3"]),
        ("hsdag compare chainm", ["chainmm"]),
        ("hsdag profile m.xml --platform p100", ["p100x4"]),
    ],
)
def test_a_line_is_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    assert completed(capsys, monkeypatch, line) == expected


def test_completing_loads_no_openvino_torch_or_compiler() -> None:
    code = (
        "import sys, os\n"
        "from hsdag.cli import app, completion\n"
        "own = completion.__name__\n"
        "each = [v for k, v in vars(completion).items() if k[0] != '_' and getattr(v, '__module__', '') == own]\n"
        "assert len(each) > 10 and all(values() for values in each)\n"
        "assert not {'openvino', 'torch', 'numba', 'scipy', 'ortools'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
