"""Whatever an input holds: it is read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hsdag.ir.errors import HsdagError
from tests.fuzz.formats import READ, READERS, drawn, inputs_of, write_files

FORMATS = [pytest.param(name, marks=[pytest.mark.slow] if name == "command" else []) for name in READERS]
CORPUS = [(name, each) for name in READERS for each in inputs_of("corpus", name)]


def refusal(name: str, folder: Path) -> str | None:
    """Why the input that lies in a folder is refused, in one line; None where it is read. Raises what is a defect."""
    refused: list[str] = []
    try:
        READERS[name](folder)
    except HsdagError as error:
        refused.append(str(error))
    assert not any(len(text.splitlines()) > 1 for text in refused), refused
    return refused[0] if refused else None


@pytest.mark.parametrize("name", FORMATS)
def test_the_seeds_of_a_format_are_read(name: str, tmp_path: Path) -> None:
    for files in inputs_of("seeds", name).values():
        write_files(files, tmp_path)
        assert refusal(name, tmp_path) in (None, f"hsdag: {READ}")


@pytest.mark.parametrize("name", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=True))
def test_an_input_is_read_or_refused_in_one_line(name: str, tmp_path: Path, random: Random) -> None:
    write_files(drawn(name, random), tmp_path)
    refusal(name, tmp_path)


@pytest.mark.parametrize(("name", "each"), CORPUS)
def test_what_once_did_harm_is_refused(name: str, each: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.ir.graph.model_guard.LEAST_LIMIT_S", 1.0)  # one of them hangs
    write_files(inputs_of("corpus", name)[each], tmp_path)
    assert refusal(name, tmp_path)
