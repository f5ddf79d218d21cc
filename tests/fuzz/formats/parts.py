"""Manifests of placed models in parts."""

from __future__ import annotations

from pathlib import Path

from hsdag.exports.parts import PartsManifest
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    PartsManifest.load(folder)


FORMAT = Format(_read)
