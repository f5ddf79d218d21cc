"""What lies in the current folder beside a downloaded model is neither run nor loaded, by no process of any command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.processes import process_command, python_command
from hsdag.cli.app import app
from links import FOLDERS

ROOT = Path(__file__).parents[2]
LIBRARIES = Path(ov.__file__).parent / "libs"
MARK = "something-ran"
SETTINGS = {
    ".numba_config.yaml": f"cache_dir: {MARK}\n",
    "matplotlibrc": "backend: module://evil\n",
    "openvino.pkg": MARK,
    "plugins.xml": "<ie><plugins><plugin name='CPU' location='./evil.so'/></plugins></ie>",
    "pytorch": "no model",
    "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n",
    "evil-1.dist-info/entry_points.txt": "[hsdag.placers]\nevil = evil:Placer\n",
}
SEARCH = "--budget 2s --seed 0"
COMMANDS = f"""
devices
models build tiny_resnet -o net.xml
inspect m.xml --devices A=CPU
place m.xml --devices A=CPU[INFERENCE_NUM_THREADS=1],B=CPU {SEARCH} -o p.json
place m.xml --devices A=cpu[threads=1],B=cpu[threads=1] {SEARCH} --executor cuda -o t.json
bench m.xml --placement p.json
doctor m.xml --devices A=CPU
bisect m.xml --devices A=CPU,CPU
explain p.run
report p.run -o r.html
export p.json --model m.xml --format openvino -o deployed
shard m.xml --devices A=CPU,B=CPU -o s.json
profile m.xml --devices A=CPU -o costs.json
solve problem.json --method hsdag {SEARCH} --workers local:2 -o sol.json
simulate problem.json sol.json
compare problem.json --methods greedy,sa --budget 1s --seeds 1
train random-wired --problems 1 --updates 1 --unseen 1 -o policy.safetensors
schema place
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, a problem, beside them modules of all names that Python can import, OpenVINO's libraries, settings."""
    x = op.parameter([1, 64], np.float32, name="x")
    products = (op.matmul(x, op.constant(np.eye(64, dtype=np.float32) + k), False, False) for k in range(4))
    ov.save_model(ov.Model([op.concat(list(map(op.relu, products)), 0)], [x], "m"), tmp_path / "m.xml")
    modules = {"hsdag", "evil", "sitecustomize", "usercustomize", "conftest", *sys.stdlib_module_names}
    for name in modules.union(packages_distributions()):
        if name.isidentifier():
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / MARK)!r}, 'a').write({name!r} + ' ')\n")
    for library in LIBRARIES.glob("*.so*"):
        (tmp_path / library.name).write_text("no library")
    problem, *_ = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "simulator.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "problem.json").write_text(problem)
    for name, text in SETTINGS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, command: Sequence[object]) -> None:
    """Run a command there. It works, and nothing that was planted has left its mark."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    mark = folder / MARK
    assert not mark.exists(), (command, mark.read_text() if mark.is_file() else mark)
    assert done.returncode == 0, (command, done.stderr)


def test_a_process_that_hsdag_starts_takes_modules_libraries_and_settings_from_elsewhere(folder: Path) -> None:
    python, *flags, code = process_command("hsdag.runtime.measuring.worker")
    register = "from hsdag.runtime.machine.devices import make_core, parse_devices; make_core(parse_devices('A=CPU'))"
    unset = "assert not numba.config.CACHE_DIR"
    compile_ = f"import hsdag.base.kernels, numba; {unset}; numba.njit(lambda x: x)(1); {unset}"
    code = f"{code.replace('__main__', 'worker')}; {register}; {compile_}"
    run(folder, [python, "-W", "error::UserWarning", *flags, code])


def test_an_hsdag_that_is_not_installed_is_found_by_the_processes_that_it_starts(tmp_path: Path) -> None:
    without_packages = "-S"
    python, *rest = python_command("import hsdag")
    run(tmp_path, [python, without_packages, *rest])
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        run(tmp_path, [python, without_packages, "-P", "-c", "import hsdag"])


def test_processes_are_started_and_libraries_are_named_in_one_place_each() -> None:
    homes = {
        "sys.executable": "hsdag/base/processes.py",
        "subprocess.Popen(": "hsdag/base/host.py",
        "register_plugin(": "ir/device.py",
    }
    paths = [path for folder in ("hsdag", *FOLDERS) for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    for word, home in homes.items():
        assert [path for path, text in texts.items() if word in text] == [ROOT / home]


@pytest.mark.slow
def test_no_command_runs_or_loads_what_lies_beside_its_model(folder: Path) -> None:
    commands = [shlex.split(line) for line in COMMANDS.split("\n") if line]
    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert names.union(group.name or "" for group in app.registered_groups) == {words[0] for words in commands}
    for words in commands:
        run(folder, [sys.executable, "-P", "-m", "hsdag", *words])
