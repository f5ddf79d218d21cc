"""Gantt charts: real pictures, the same every time, and one sentence where they cannot be drawn."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from hsdag.drawing.gantt import COLOURS, MAX_TYPES, OTHER_COLOUR, type_colours, write_gantt
from hsdag.drawing.picture import check_picture
from hsdag.ir.errors import OptionError, OutputError
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.simulator import simulate
from hsdag.runtime.timeline.timeline import Timeline

PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def timeline_of(num_ops: int, types: list[str], num_devices: int = 3) -> Timeline:
    rng = np.random.default_rng(num_ops)
    edges = [(int(rng.integers(0, v)), v) for v in range(1, num_ops)]
    problem = ScheduleProblem.from_arrays(
        rng.random((num_ops, num_devices)),
        edges,
        output_bytes=1.0,
        link_bandwidth_bytes_per_s=4.0,
        labels=OpLabels.empty(num_ops, [types[v % len(types)] for v in range(num_ops)]),
        name="cost is $5 & <free>",
    )
    return Timeline.of(simulate(problem, rng.integers(0, num_devices, num_ops)), problem)


@pytest.mark.parametrize("num_ops", [1, 4, 261, 1000])
def test_pictures_of_any_size_are_drawn(tmp_path: Path, num_ops: int) -> None:
    timeline = timeline_of(num_ops, ["MatMul", "Add", "$x$"])
    write_gantt(timeline, tmp_path / "g.png")
    write_gantt(timeline, tmp_path / "g.svg")
    assert (tmp_path / "g.png").read_bytes().startswith(PNG_HEAD)
    assert ET.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("1.svg", "2.svg", "1.png", "2.png"):
        write_gantt(timeline_of(40, ["MatMul", "Add"]), tmp_path / name)
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    assert b"dc:date" not in (tmp_path / "1.svg").read_bytes()


def test_the_rarest_of_many_types_share_a_colour() -> None:
    few = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES)]))
    assert sorted(few.values()) == sorted(COLOURS)
    many = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES + 3)]))
    assert len(set(many.values()) - {OTHER_COLOUR}) == MAX_TYPES - 1
    assert list(many.values()).count(OTHER_COLOUR) == 4


def test_an_empty_run_can_be_drawn(tmp_path: Path) -> None:
    problem = ScheduleProblem.from_arrays([[0.0]], [])
    write_gantt(Timeline.of(simulate(problem, [0]), problem), tmp_path / "g.png")
    assert (tmp_path / "g.png").stat().st_size > 0


def test_another_suffix_is_refused() -> None:
    with pytest.raises(OptionError, match=r"ends in \.png or \.svg"):
        check_picture(Path("g.pdf"))


def test_without_matplotlib_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"pip install 'hsdag\[pictures\]'"):
        check_picture(Path("g.png"))


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_gantt(timeline_of(4, ["a"]), tmp_path / "none" / "g.svg")
