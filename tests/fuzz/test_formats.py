"""Whatever an input holds: it is read, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hsdag import api
from hsdag.base.errors import HsdagError
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.page import sections_of
from hsdag.exports.base import export_placement
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.homes import op_devices, placed_priority
from hsdag.ir.placement.placement import Placement
from hsdag.methods.lists.rules import read_rules
from hsdag.methods.policy_file import StateFile
from hsdag.runtime.measuring.inferences import make_inputs
from hsdag.runtime.measuring.profile import read_profile, write_profile
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json, read_problem
from hsdag.search.simulate import placed
from tests.fuzz.mutations import mutate

HERE = Path(__file__).parent

Files: TypeAlias = Mapping[str, bytes]
"""An input: the content of every file by its name."""


@cache
def _model() -> Any:
    return load_model(HERE / "seeds/ir/branch/model.xml")


@cache
def _graph() -> ComputationGraph:
    return graph_of(_model())


def _read_placement(folder: Path) -> None:
    """For a model, for a problem, and for an export."""
    path, is_map = folder / "placement.json", False
    with suppress(HsdagError):
        placed(path, read_problem(HERE / "seeds/problem/diamond/problem.json"))
        is_map = True
    try:
        placement = Placement.load(path)
    except HsdagError:
        if not is_map:
            raise
        return
    placement.to_json()
    for name in ("json", "csv", "dot"):
        with suppress(HsdagError):
            export_placement(placement, name, folder / f"exported.{name}")
    op_devices(placement, _graph())
    placed_priority(placement, _graph())
    list(placement.devices)


def _read_platform(folder: Path) -> None:
    """Its costs for a graph are written as a problem."""
    platform = load_platform(folder / "platform.toml")
    problem_from_json(problem_to_json(analytic_costs(_graph(), platform)))


def _read_policy(folder: Path) -> None:
    """Weights for reuse, and the state of a training that was interrupted."""
    path = folder / "policy.safetensors"
    with suppress(HsdagError):
        StateFile(path).load()
    read_rules(path)


def _read_problem(folder: Path) -> None:
    """What is read is solved by a list scheduler, simulated, and written again."""
    problem = read_problem(folder / "problem.json")
    assert problem_to_json(problem_from_json(problem_to_json(problem))) == problem_to_json(problem)
    solved = api.solve(problem, method="heft", budget="1s")
    api.simulate(problem, solved.placement).model_dump_json(by_alias=True)


def _read_profile(folder: Path) -> None:
    """And the costs that follow from it."""
    profile = read_profile(folder / "profile.json")
    graph = graph_from_edges(["Relu"] * len(profile.times[0].time_s), [])
    assert profile.costs(graph, by_op=True).num_devices == profile.costs(graph).num_devices
    assert profile.memory_bytes.shape == (len(profile.devices),)
    write_profile(profile, folder / "written.json")


def _read_run(folder: Path) -> None:
    """As reports, explanations and resumed searches read it."""
    found = RunFolder.load(folder)
    sections_of(found)
    resumed = RunFolder.resume(folder, found.record)
    assert resumed.events is not None
    assert resumed.kept is not None
    resumed.state.load()


READERS: dict[str, Callable[[Path], object]] = {
    "inputs": lambda folder: make_inputs(_model(), 0, folder / "inputs.npz"),
    "ir": lambda folder: graph_of(load_model(folder / "model.xml")),
    "onnx": lambda folder: graph_of(load_model(folder / "model.onnx")),
    "placement": _read_placement,
    "platform": _read_platform,
    "policy": _read_policy,
    "problem": _read_problem,
    "profile": _read_profile,
    "run": _read_run,
}
"""By format: what takes the folder with the files of an input; it may raise HsdagError, and nothing else."""


def inputs_of(kind: str, name: str) -> dict[str, Files]:
    """The ``seeds`` of a format, which are valid, or its ``corpus``: inputs that once did harm."""
    folder = HERE / kind / name
    cases = sorted(folder.iterdir()) if folder.is_dir() else []
    return {case.name: {path.name: path.read_bytes() for path in sorted(case.iterdir())} for case in cases}


def write_files(files: Files, folder: Path) -> None:
    """Put an input in a folder in place of what is there."""
    for path in folder.iterdir():
        if path.name not in files and path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def drawn(name: str, rng: Random) -> Files:
    """An input made from one of the seeds, with a file that is wrong or missing."""
    files = dict(rng.choice(list(inputs_of("seeds", name).values())))
    file = rng.choice(list(files))
    if len(files) > 1 and rng.random() < 0.02:
        del files[file]
    else:
        files[file] = mutate(file, files[file], rng)
    return files


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


@pytest.mark.parametrize("name", READERS)
def test_the_seeds_of_a_format_are_read(name: str, tmp_path: Path) -> None:
    for files in inputs_of("seeds", name).values():
        write_files(files, tmp_path)
        assert refusal(name, tmp_path) is None


@pytest.mark.parametrize("name", READERS)
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
