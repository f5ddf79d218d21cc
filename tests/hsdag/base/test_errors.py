"""Texts name options as their readers write them, and no text of the library has a flag outside of a command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from hsdag.base.errors import FLAGS_VARIABLE, flag, option
from tests.docs.test_names import OPTION, options
from tests.test_architecture import OWN, PACKAGE, SOURCES, tree_of

LIBRARY = [path for path in (*SOURCES, *OWN) if not path.is_relative_to(PACKAGE / "cli")]

OTHERS = {PACKAGE / path for path in ("base/errors.py", "commands/doctor/absent.py", "exports/extension/run.py")}
OTHERS |= {PACKAGE / "exports" / "usage.py"}
"""Files with the flags of parameters, and with those of docker, of a deployed program and of cmake."""


def texts_of(node: ast.AST) -> Iterator[str]:
    """Texts below a node, with braces in place of values; no docstrings, and no flags that are words of a command."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.Constant):
        yield str(node.value)
    is_command = isinstance(node, ast.List) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "command")
    for child in ast.iter_child_nodes(node):
        is_word = is_command and isinstance(child, ast.Constant) and OPTION.fullmatch(str(child.value))
        if not is_word and not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from texts_of(child)


def named_in(node: ast.AST) -> Iterator[str]:
    """The options that texts below a node name."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "option":
            yield from (str(name.value) for name in call.args if isinstance(name, ast.Constant))


def run_by_import(parent: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """The statements outside of functions."""
    for statement in parent.body:
        if isinstance(statement, ast.ClassDef):
            yield from run_by_import(statement)
        elif not isinstance(statement, ast.FunctionDef):
            yield statement


def test_no_text_of_the_library_has_a_flag_outside_of_a_command() -> None:
    for path in LIBRARY:
        said = [re.split(r"\b(?:hsdag|ray start) ", text)[0] for text in texts_of(tree_of(path))]
        assert path in OTHERS or not [text for text in said if OPTION.search(text)], path


def test_every_option_that_a_text_names_is_there() -> None:
    known = set[str]().union(*options().values())
    names = [name for path in LIBRARY for name in named_in(tree_of(path))]
    assert len(names) > 100
    assert not [name for name in names if not name.isidentifier() or flag(name) not in known]


def test_options_are_named_when_a_text_is_made_and_not_when_its_module_is_imported() -> None:
    for path in LIBRARY:
        assert not [name for statement in run_by_import(tree_of(path)) for name in named_in(statement)], path


def test_an_option_is_named_as_its_reader_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["partition_cpu", "pins", "settings", "inputs", "run_folder"]
    assert [option(name) for name in names] == names
    monkeypatch.setenv(FLAGS_VARIABLE, "1")
    assert [option(name) for name in names] == ["--partition-cpu", "--pin", "--set", "--input", "--run"]
