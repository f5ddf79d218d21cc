"""Whatever an input holds: it is read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hsdag.ir.errors import HsdagError
from tests.fuzz.formats.base import READ, corpus_of, drawn, find_format, format_names, seeds_of, write_files
from tests.fuzz.trial import Outcome, try_input

FINE = (Outcome.ACCEPTED, Outcome.REFUSED)
FORMATS = [pytest.param(name, marks=[pytest.mark.slow] if name == "command" else []) for name in format_names()]
CORPUS = [(name, each) for name in format_names() for each in corpus_of(name)]


@pytest.mark.parametrize("name", FORMATS)
def test_the_seeds_of_a_format_are_read(name: str, tmp_path: Path) -> None:
    for files in seeds_of(name):
        write_files(files, tmp_path)
        outcome, why = try_input(find_format(name), tmp_path)
        assert outcome is Outcome.ACCEPTED or why == f"hsdag: {READ}", why


@pytest.mark.parametrize("name", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=True))
def test_an_input_is_read_or_refused_in_one_line(name: str, tmp_path: Path, random: Random) -> None:
    write_files(drawn(name, seeds_of(name), random), tmp_path)
    outcome, why = try_input(find_format(name), tmp_path)
    assert outcome in FINE, why


@pytest.mark.parametrize(("name", "each"), CORPUS)
def test_what_once_did_harm_is_refused(name: str, each: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.ir.graph.model_guard.LEAST_LIMIT_S", 1.0)  # one of them hangs
    write_files(corpus_of(name)[each], tmp_path)
    with pytest.raises(HsdagError, match=r"^[^\n]+$"):
        find_format(name).read(tmp_path)
