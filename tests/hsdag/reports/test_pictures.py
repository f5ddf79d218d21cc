"""Figures of a report as pictures: all of them, in both formats, the same at every writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hsdag.reports.pictures import write_pictures
from tests.hsdag.reports.html.examples import CONTENT


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pictures(CONTENT, tmp_path_factory.mktemp("figures"))


@pytest.mark.slow
def test_every_figure_is_there_as_svg_and_png(files: list[Path]) -> None:
    names = ["comparison", "graph", "timeline-simulated", "timeline-measured", "search"]
    assert [path.name for path in files] == [f"{name}{suffix}" for name in names for suffix in (".png", ".svg")]
    assert all(path.read_bytes().startswith((b"\x89PNG", b"<?xml")) for path in files)


def test_a_hatch_stands_beside_the_colour_of_the_second_device(files: list[Path]) -> None:
    graph = next(path for path in files if path.name == "graph.svg").read_text()
    assert "<pattern" in graph


def test_what_a_run_has_not_come_to_is_left_out(tmp_path: Path) -> None:
    bare = replace(CONTENT, compared=(), timelines=(), placed=None, turns=())
    assert [path.name for path in write_pictures(bare, tmp_path)] == ["search.png", "search.svg"]


def test_pictures_are_the_same_at_every_writing(files: list[Path], tmp_path: Path) -> None:
    again = write_pictures(replace(CONTENT, placed=None), tmp_path)
    for path in again:
        assert path.read_bytes() == (files[0].parent / path.name).read_bytes()


def test_names_that_are_long_or_of_no_known_script_are_drawn_without_a_warning(tmp_path: Path) -> None:
    compared = tuple(replace(each, name=f"{each.name} {'y' * 300}") for each in CONTENT.compared)
    odd = replace(CONTENT, name="\u6a21\u578b", compared=compared, timelines=(), trials=(), turns=())
    assert len(write_pictures(odd, tmp_path)) == 4
