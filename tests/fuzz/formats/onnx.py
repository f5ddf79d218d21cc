"""ONNX models."""

from __future__ import annotations

from pathlib import Path

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import load_model
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    graph_of(load_model(folder / "model.onnx"))


FORMAT = Format(_read)
