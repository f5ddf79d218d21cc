"""How many random changes of operators the tests notice: each against the tests of the folder that it lies in.

Places are drawn from all product code that is not compiled by numba: comparisons, arithmetic, ``and`` and ``or``,
``not``, ``min`` and ``max``, ``any`` and ``all``. One operator at a time is changed in a copy of the repository, and
the tests that mirror the file's folder are run until one fails: the file's own, all others, slow ones last. The test
that failed then has to pass without the change, else it is left out and the others are run. Survivors are listed with
their line, for a person to judge: some change nothing. Exit status 1 when fewer than 80% are noticed.

    python benchmarks/mutants.py [--count 60] [--seed 0] [--only runtime/executor] [--jobs 2]
"""

from __future__ import annotations

import ast
import copy
import multiprocessing
import os
import queue
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from machine import ROOT, options

from links import FOLDERS

COMPILED = {"inner", "inlined", "bare", "kernel", "njit", "compiled"}
BAR = 0.8
LIMIT_S = "300"
"""What a test may take."""
SERVER = multiprocessing.get_context("forkserver")
"""It starts the processes of tests, and has loaded what takes long to load."""
LOADED = "hypothesis.extra.numpy openvino.opset13 ortools.sat.python.cp_model scipy.optimize torch numba typer".split()
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """A file with one operator changed."""

    path: Path
    line: int
    before: str
    after: str
    text: str


def mutated(node: ast.AST) -> ast.AST | None:
    """The node with its operator changed, if it has one."""
    match found := copy.deepcopy(node):
        case ast.Compare(ops=[operator, *_]) if type(operator) in OPERATORS:
            found.ops[0] = OPERATORS[type(operator)]()
        case ast.BinOp(left=left, right=right) if any(map(is_text, (left, right))):
            return None  # strings are joined, and a change would only raise a TypeError
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPERATORS:
            found.op = OPERATORS[type(operator)]()
        case ast.UnaryOp(op=ast.Not()):
            return found.operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            found.func.id = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            found.func.attr = NAMES[name]
        case _:
            return None
    return found


def is_text(node: ast.AST) -> bool:
    """Whether a node is a literal that is no number."""
    return isinstance(node, ast.Constant | ast.JoinedStr) and not isinstance(getattr(node, "value", None), int | float)


def is_compiled(node: ast.AST) -> bool:
    """Whether numba compiles a function."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(ast.unparse(each).partition("(")[0].rpartition(".")[2] in COMPILED for each in decorators)


def interpreted(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes outside compiled functions."""
    for child in ast.iter_child_nodes(node):
        if not is_compiled(child):
            yield child
            yield from interpreted(child)


def mutants_of(path: Path) -> list[Mutant]:
    """All of a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in interpreted(ast.parse(text)):
        changed = mutated(node)
        if changed is not None:
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            before, after = text.encode()[begin:end].decode(), f"({ast.unparse(changed)})"
            new = (text.encode()[:begin] + after.encode() + text.encode()[end:]).decode()
            found.append(Mutant(path, node.lineno, " ".join(before.split()), after, new))
    return found


def tests_of(path: Path) -> list[Path]:
    """The tests that mirror the folder of a file, or the nearest folder above it that has some."""
    folder = ROOT / "tests" / "hsdag" / str(path.relative_to(ROOT).parent).removeprefix("hsdag").lstrip("/")
    while not any(folder.rglob("test_*.py")):
        folder = folder.parent
    return sorted(folder.glob("test_*.py")) if path.parent == ROOT / "hsdag" else [folder]


def run_tests(copied: str, arguments: tuple[str, ...], said: str) -> None:
    """What a process does: the tests that pytest is asked for in a copy of the repository; what it says is a file."""
    with Path(said).open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    for name in [name for name in sys.modules if name.partition(".")[0] == "hsdag"]:
        del sys.modules[name]  # of this repository
    os.chdir(copied)
    sys.path.insert(0, copied)
    os.environ["PYTHONPATH"] = copied
    always = "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--timeout", LIMIT_S
    sys.exit(pytest.main([*always, *arguments]))


def failing(copied: Path, *arguments: str) -> str | None:
    """What fails first of the tests that pytest is asked for in a copy of the repository."""
    with tempfile.NamedTemporaryFile("r") as said:
        process = SERVER.Process(target=run_tests, args=(str(copied), arguments, said.name))
        process.start()
        process.join()
        found = FAILED.search(said.read())
    if process.exitcode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    return found[1] if found else arguments[-1]


def noticing(mutant: Mutant, copied: Path) -> str | None:
    """The test that notices a change."""
    file, tests = copied / mutant.path.relative_to(ROOT), tests_of(mutant.path)
    own = [f for test in tests for f in (test, *test.rglob("*.py")) if f.name == f"test_{mutant.path.stem}.py"][:1]
    names = [str(each.relative_to(ROOT)) for each in (*own, *tests)]
    original = file.read_text(encoding="utf-8")
    skipped: list[str] = []
    while True:
        file.write_text(mutant.text, encoding="utf-8")
        try:
            found = failing(copied, "-m", "not slow", *skipped, *names)
            found = found or failing(copied, "-m", "slow", *skipped, *names)
        finally:
            file.write_text(original, encoding="utf-8")
        if found is None or failing(copied, found) is None:
            return found
        if "::" not in found:
            raise RuntimeError(f"{found} cannot be run without any change")
        print(f"    {found} fails without any change, too, and is left out", flush=True)
        skipped += ["--deselect", found]


def main() -> int:
    given = options(__doc__, count=60, seed=0, only=("", "files whose path begins so"), jobs=2)
    product = sorted(file for folder in ("hsdag", *FOLDERS) for file in (ROOT / folder).rglob("*.py"))
    files = [file for file in product if str(file.relative_to(ROOT)).startswith(given.only)]
    every = [mutant for file in files for mutant in mutants_of(file)]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{len(drawn)} of {len(every)} operators are changed, one at a time", flush=True)
    SERVER.set_forkserver_preload(LOADED)
    survivors, copies = list[str](), queue.SimpleQueue[Path]()

    def judge(number: int, mutant: Mutant) -> None:
        copied = copies.get()
        test = noticing(mutant, copied)
        copies.put(copied)
        line = f"{mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.before[:70]} -> {mutant.after[:70]}"
        survivors.extend([] if test else [line])
        print(f"{number:3d} {f'noticed  {line}; by {test}' if test else f'SURVIVES {line}'}", flush=True)

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.jobs) as pool:
        kept = shutil.ignore_patterns(".git", ".venv*", "artifacts", "__pycache__", ".mypy_cache", ".ruff_cache")
        for job in range(given.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(name) / str(job), symlinks=True, ignore=kept)))
        for done in [pool.submit(judge, *each) for each in enumerate(drawn, start=1)]:
            done.result()
    killed = len(drawn) - len(survivors)
    print(f"{killed} of {len(drawn)} are noticed (bar {BAR:.0%})", *survivors, sep="\n  ")
    return 0 if killed >= BAR * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
