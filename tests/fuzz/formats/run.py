"""Run folders, as reports, explanations and resumed searches read them."""

from __future__ import annotations

from pathlib import Path

from hsdag.placing.kept_run import KeptRun
from hsdag.reporting.page import sections_of
from hsdag.search.run_folder import RunFolder, read_run_record
from tests.fuzz.formats.base import Format


def _read(folder: Path) -> None:
    sections_of(KeptRun.load(folder))
    resumed = RunFolder.resume(folder, read_run_record(folder))
    resumed.events()
    resumed.kept()
    resumed.load()


FORMAT = Format(_read)
