"""Fixtures shared by all tests: small real models on disk."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from hypothesis import settings
from jsonschema import Draft202012Validator
from typer._click.globals import get_current_context

from hsdag.base import processes
from hsdag.base.kernels import INTERPRETED_VARIABLE
from hsdag.cli import output
from hsdag.commands.place import tuning
from hsdag.models import save_model_files
from hsdag.runtime.measuring.effort import Effort
from hsdag.runtime.measuring.latency import Protocol
from hsdag.schemas import RESULTS, schema_of
from tests import warm

settings.register_profile("same_examples", max_examples=20, deadline=None, derandomize=True)  # make test
settings.register_profile("new_examples", max_examples=200, deadline=None)  # make hunt
settings.load_profile("same_examples")
torch.set_num_threads(1)  # the policies under test are small: more threads only get in each other's way
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else all processes would compile every module, and every test, anew
sys.dont_write_bytecode = False
gc.disable()  # while modules are imported, which leave no garbage


def pytest_collection_finish() -> None:
    """What collecting the tests made stays: no garbage collection of a test looks at it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def short_comparisons() -> Iterator[None]:
    """Comparisons, races of settings and profiles that are not told how long to measure end after a few rounds."""
    defaults = Protocol.__init__.__defaults__ or ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol.__init__, "__defaults__", (4, 6, 0.02, *defaults[3:]))
        patch.setattr(tuning, "PROTOCOL", Protocol(3, 4, 0.01))
        patch.setattr(Effort.__init__, "__defaults__", astuple(SHORT))
        for name in ("limit_s", "probe_limit_s", "most_windows"):
            patch.setattr(Effort, name, getattr(SHORT, name))  # the most that a budget gives
        yield


SHORT = Effort(runs=6, limit_s=0.3, probe_runs=10, probe_limit_s=0.05, most_windows=3)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name that ``make`` fills: the first worker of the tests that needs it makes it for all."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def tiny_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The IR of tiny_resnet."""
    return zoo_model(tmp_path_factory, "tiny_resnet")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The IR of tiny_bert."""
    return zoo_model(tmp_path_factory, "tiny_bert")


def zoo_model(factory: pytest.TempPathFactory, name: str) -> Path:
    """The IR of a model of the zoo."""
    file = f"{name}.xml"
    return made_once(factory, name, lambda folder: save_model_files(name, folder / file)) / file


@pytest.fixture(scope="class", params=["inf", pytest.param("0", marks=pytest.mark.slow)])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels of rare modes, which take longer to compile than a test to run, are compiled in slow tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INTERPRETED_VARIABLE, request.param)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_profile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Profiles of tests stay out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HSDAG_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def measuring_processes_are_forked() -> Iterator[None]:
    """From one that has imported OpenVINO."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_process", warm.start)
        yield


@pytest.fixture(scope="session", autouse=True)
def answers_have_the_form_that_their_schemas_say() -> Iterator[None]:
    """Whatever a command prints with --json in any test is checked."""
    as_text = output.as_text

    def checked(document: Mapping[str, Any]) -> str:
        context = get_current_context(silent=True)
        command = context.command_path.partition(" ")[2] if context is not None else "schema"
        if command != "schema":
            text = as_text(document)
            errors = [
                f"{error.json_path}: {error.message[:300]}"
                for error in validator(command).iter_errors(json.loads(text))
            ]
            assert not errors, f"hsdag {command} --json is not as hsdag schema {command} says: {errors}"
        return as_text(document)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "as_text", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands anew whenever one is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@cache
def validator(command: str) -> Draft202012Validator:
    """Checks answers of a command; one without a schema fails here."""
    assert command in RESULTS, "name the model of its answer in hsdag/schemas.py"
    return Draft202012Validator(schema_of(command))


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """Nodes without names, among them some for which OpenVINO makes constants of its own; the batch is open."""
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], [v / 108 for v in range(108)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Selu", ["c"], ["s"]),
        helper.make_node("LeakyRelu", ["s"], ["l"]),
        helper.make_node("GlobalAveragePool", ["l"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"]),
        helper.make_node("ReduceMean", ["c"], ["z"], axes=[1, 2, 3], keepdims=0),
    ]
    inputs = [value("x", TensorProto.FLOAT, ["batch", 3, 8, 8])]
    outputs = [value("y", TensorProto.FLOAT, ["batch", 4]), value("z", TensorProto.FLOAT, ["batch"])]
    graph = helper.make_graph(nodes, "unnamed", inputs, outputs, [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, tmp_path / "unnamed.onnx")
    return tmp_path / "unnamed.onnx"
