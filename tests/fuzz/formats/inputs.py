"""Arrays for a model's inputs (.npz)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hsdag.ir.graph.reader import load_model
from hsdag.runtime.measuring.inferences import make_inputs
from tests.fuzz.formats.base import HERE, Format


@cache
def _model() -> Any:
    return load_model(HERE / "seeds/ir/branch/model.xml")


def _read(folder: Path) -> None:
    make_inputs(_model(), 0, folder / "inputs.npz")


FORMAT = Format(_read)
