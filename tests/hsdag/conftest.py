"""Fixtures of tests of the tool: a search as it lies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag.placing.place import run_place
from hsdag.placing.result import PlaceResult
from hsdag.runtime.measuring.latency import Protocol
from hsdag.search.options import PlaceOptions


@pytest.fixture(scope="session")
def kept_search(tiny_resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> PlaceResult:
    """A search over two halves of the CPU, its run folder beside the placement file; nobody may change them."""
    folder = tmp_path_factory.mktemp("kept")
    options = PlaceOptions(partition_cpu=2, budget_s=5.0, max_evaluations=6, protocol=Protocol(4, 6, 0.02, 4.0))
    result = run_place(tiny_resnet, options, run_folder=folder / "tiny.placement.run")
    result.save(folder / "tiny.placement.json")
    return result
