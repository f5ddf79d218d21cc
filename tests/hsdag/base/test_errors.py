"""Texts name options as their readers write them, and no text of the library has a flag outside of a command."""

from __future__ import annotations

import ast

import pytest

from hsdag.base.errors import FLAGS_VARIABLE, flag, option
from tests.docs.test_names import OPTION, options
from tests.test_architecture import OWN, PACKAGE, SOURCES, tree_of

OTHERS = {"base/errors.py", "commands/doctor/absent.py", "exports/extension/run.py", "exports/usage.py"}
"""Files with the flags of parameters, and with those of docker, of a deployed program and of cmake."""

LIBRARY = [path for path in (*SOURCES, *OWN) if not path.is_relative_to(PACKAGE / "cli")]


class Texts(ast.NodeVisitor):
    """The texts of a file with flags that are no part of a command, and the names of options in its texts."""

    def __init__(self) -> None:
        self.with_flags: list[str] = []
        self.names: set[str] = set()
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.look_at("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.look_at(node.value)

    def visit_List(self, node: ast.List) -> None:
        self.visit_words(node.elts)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("option", "flag"):
            assert self.depth, "a constant of a module would keep the words of whoever imports it"
            self.names |= {str(name.value) for name in node.args if isinstance(name, ast.Constant)}
        self.visit_words(node.args if called == "command" else [])
        for part in ast.iter_child_nodes(node):
            if called != "command" or part not in node.args:
                self.visit(part)

    def visit_words(self, words: list[ast.expr]) -> None:
        """Visit words of a command, which may be flags."""
        for word in words:
            if not (isinstance(word, ast.Constant) and OPTION.fullmatch(str(word.value))):
                self.visit(word)

    def look_at(self, text: str) -> None:
        said = text.partition("hsdag ")[0]
        self.with_flags += [text] * bool(OPTION.search(said.partition("ray start ")[0]))


def test_no_text_of_the_library_has_a_flag_and_every_option_that_one_names_is_there() -> None:
    known = set().union(*options().values())
    names = set[str]()
    for path in LIBRARY:
        texts = Texts()
        texts.visit(tree_of(path))
        assert not texts.with_flags or path.as_posix().endswith(tuple(OTHERS)), path
        names |= texts.names
    assert len(names) > 30
    assert not [name for name in names if not name.isidentifier() or flag(name) not in known]


def test_an_option_is_named_as_its_reader_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["partition_cpu", "pins", "settings", "inputs", "run_folder"]
    assert [option(name) for name in names] == names
    monkeypatch.setenv(FLAGS_VARIABLE, "1")
    assert [option(name) for name in names] == ["--partition-cpu", "--pin", "--set", "--input", "--run"]
