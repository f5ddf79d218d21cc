"""Energy counters: which are read, how they wrap around, and one line where there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hsdag.base.errors import DeviceError
from hsdag.runtime.machine.energy_counters import ROOT, EnergyCounters
from hsdag.search.options import PlaceOptions


def written(path: Path, text: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with its cores and its memory, and a GPU beside them."""
    monkeypatch.setenv(ROOT, str(tmp_path))
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}
    for zone, name in zones.items():
        folder = tmp_path / "class" / "powercap" / zone
        written(folder / "name", name)
        written(folder / "energy_uj", 900)
        written(folder / "max_energy_range_uj", 999)
    written(tmp_path / "class" / "hwmon" / "hwmon3" / "name", "xe")
    written(tmp_path / "class" / "hwmon" / "hwmon3" / "energy1_input", 10)
    written(tmp_path / "class" / "hwmon" / "hwmon3" / "energy2_input", 10)
    return tmp_path


def test_packages_memory_and_other_devices_count_once(sysfs: Path) -> None:
    ranges = EnergyCounters.find().ranges
    assert {str(path.relative_to(sysfs / "class")): ends for path, ends in ranges.items()} == {
        "powercap/intel-rapl:0/energy_uj": 1000.0,
        "powercap/intel-rapl:0:1/energy_uj": 1000.0,
        "hwmon/hwmon3/energy1_input": 2.0**64,
    }


def test_joules_are_counted_on_where_a_counter_wraps_around(sysfs: Path) -> None:
    counters = EnergyCounters.find()
    before = counters.counts()
    written(sysfs / "class/powercap/intel-rapl:0/energy_uj", 50)  # 99 more to 999, one to 0, 50 more
    written(sysfs / "class/hwmon/hwmon3/energy1_input", 12)
    assert counters.joules_since(before) == pytest.approx(152e-6)


def test_counters_of_cores_and_packages_alike_are_read_without_powercap_only(sysfs: Path) -> None:
    amd = sysfs / "class" / "hwmon" / "hwmon4"
    written(amd / "name", "amd_energy")
    for number, label in ((1, "Ecore000"), (2, "Esocket0")):
        written(amd / f"energy{number}_input", 5)
        written(amd / f"energy{number}_label", label)
    assert amd / "energy2_input" not in EnergyCounters.find().ranges
    for zone in (sysfs / "class" / "powercap").iterdir():
        (zone / "energy_uj").unlink()
    found = EnergyCounters.find().ranges
    assert amd / "energy2_input" in found
    assert amd / "energy1_input" not in found


def test_without_counters_place_says_so_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))
    from hsdag.runtime.objectives import ENERGY

    with pytest.raises(DeviceError, match=r"no energy counters: neither .*powercap nor .*hwmon has any"):
        PlaceOptions(objective=ENERGY).check()


@pytest.mark.usefixtures("sysfs")
def test_counters_that_may_not_be_read_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    with pytest.raises(DeviceError, match=r"energy_uj counts energy and cannot be read: run 'sudo chmod a\+r "):
        EnergyCounters.find()
