"""Compiled functions outlive a release in which a type that they take has moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULE = """
from typing import NamedTuple
import numpy as np
from hsdag.ir.compiled import bare
from {home} import Pair

@bare
def total(p: Pair) -> float:
    return p.a + p.b

print(total(Pair(1.0, 2.0)))
"""
PAIR = "from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    a: float\n    b: float\n"


def test_a_type_that_has_moved_is_compiled_for_again(tmp_path: Path) -> None:
    for home in ("before", "after"):
        (tmp_path / f"{home}.py").write_text(PAIR)
        (tmp_path / "main.py").write_text(MODULE.format(home=home))
        code = "import sys; sys.path.insert(0, sys.argv[1]); import main"
        run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert run.stdout == "3.0\n", run.stderr
        (tmp_path / f"{home}.py").unlink()
