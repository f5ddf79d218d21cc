"""Examples in the docstrings of the public API."""

from __future__ import annotations

import doctest

import pytest

import hsdag

EXAMPLES = [
    example
    for name in hsdag.__all__
    if name[0] != "_"
    for example in doctest.DocTestFinder().find(getattr(hsdag, name), f"hsdag.{name}", globs={})
    if example.examples
]


def test_each_function_has_an_example() -> None:
    functions = {name for name in hsdag.__all__ if name[0].islower()}
    assert functions <= {example.name.removeprefix("hsdag.") for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_gives_what_it_shows(example: doctest.DocTest) -> None:
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0
