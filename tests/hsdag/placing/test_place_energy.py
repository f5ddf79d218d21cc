"""Placing for energy: joules by the machine's counters, in their unit everywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsdag import place
from hsdag.runtime.machine.energy_counters import ROOT
from tests.hsdag.ir.growing import chain_model, saved

WATTS = 50.0


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that takes the same power all the time."""
    zone, is_over = tmp_path / "class" / "powercap" / "intel-rapl:0", threading.Event()
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text(f"{2**40}\n")

    def count() -> None:
        while not is_over.is_set():
            whole = zone / "energy_uj.next"
            whole.write_text(f"{int(1e6 * WATTS * time.monotonic()) % 2**40}\n")
            whole.replace(zone / "energy_uj")
            time.sleep(1e-3)

    counter = threading.Thread(target=count)
    counter.start()
    while not (zone / "energy_uj").exists():
        time.sleep(1e-3)
    monkeypatch.setenv(ROOT, str(tmp_path))
    yield
    is_over.set()
    counter.join()


@pytest.mark.usefixtures("counting")
def test_the_answer_of_a_search_for_energy_is_in_joules(tmp_path: Path) -> None:
    model = saved(chain_model(4, 256), tmp_path / "chain")
    found = place(model, "CPU", objective="energy", budget="1s", data_shape="64,256")
    assert (found.unit, found.value) == ("J", found.rows[0].median)
    assert " mJ; name a second device" in found.sentence
    assert found.placement.objective == "energy"
    assert found.placement.latency is None
    assert found.placement.baselines == {}
