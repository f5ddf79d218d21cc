"""Kernels: compiled functions, which outlive a release in which a type that they take has moved."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.kernels import (
    INTERPRETED_VARIABLE,
    Locator,
    bare,
    compiled_in_time,
    compiling,
    compiling_at_most,
    kernel,
    run_few,
    run_kernel,
)
from hsdag.ir.graph.computation_graph import Csr
from hsdag.ir.graph.paths import longest_before

ROOT = Path(__file__).parents[3]


def one_more(x: int) -> int:
    return x + 1


def test_a_kernel_is_compiled_where_no_folder_can_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)  # as where all folders are read-only
    assert kernel(one_more)(1) == 2


RECORD = np.dtype([("device", "i8"), ("base", "f8")])  # names that numpy's own scalars have


@bare
def _add(rows: np.ndarray, i: int, value: float) -> None:
    rows[i].base += value


@bare
def _fill(rows: np.ndarray, scale: float) -> float:
    total = 0.0
    for i in range(len(rows)):
        _add(rows, i, scale * rows[i].device)
        total += rows[i].base
    return total


def test_a_kernel_is_compiled_when_its_calls_have_taken_many_steps_or_a_search_calls_it_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, "5")
    often, seldom, briefly = (bare(cast("Any", _fill).py_func) for _ in range(3))
    signatures = []
    for steps in (2, 3, 6):
        assert run_kernel(often, steps, np.array([(1, 0), (2, 0)], RECORD), 0.5) == 1.5
        with compiling():
            run_few(seldom, steps + 2 * (steps < 4), np.zeros(2, RECORD), 1.0)
            with compiling(is_short=True):
                run_kernel(briefly, 1, np.zeros(2, RECORD), 1.0)
        signatures.append(tuple(len(each.signatures) for each in (often, seldom, briefly)))
    assert signatures == [(0, 0, 0), (0, 0, 0), (1, 1, 0)]


@given(st.integers(0, 1000))
def test_the_longest_path_before_each_op_is_the_longest_of_all_paths_that_lead_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = np.nonzero(np.triu(rng.random((7, 7)) < 0.4, 1))
    ops, edges = rng.integers(0, 9, 7).astype(float), rng.integers(0, 9, len(src)).astype(float)
    found = longest_before(np.arange(7), Csr.build(7, dst, src), ops, edges)
    graph = nx.DiGraph(list(zip(src.tolist(), dst.tolist(), strict=True)))
    cost = dict(zip(zip(src.tolist(), dst.tolist(), strict=True), edges.tolist(), strict=True))
    graph.add_nodes_from(range(7))
    for v in range(7):
        paths = [path for u in range(v) for path in nx.all_simple_paths(graph, u, v)]
        lengths = [sum(ops[u] + cost[u, w] for u, w in itertools.pairwise(path)) for path in paths]
        assert found[v] == max(lengths, default=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls",
    [
        "\n@bare\ndef outer(p: Pair):\n    return FACTOR * inner(p.x)\n",
        "\n@bare\ndef outer(p: Pair):\n    return below(p)\n\n@bare\ndef below(p):\n    return FACTOR * inner(p.x)\n",
    ],
    ids=["directly", "through a kernel that is defined below"],
)
def test_a_kernel_is_compiled_again_when_a_kernel_or_constant_of_another_file_has_changed_or_a_type_has_moved(
    calls: str, tmp_path: Path
) -> None:
    begin = "from hsdag.base.kernels import bare\n"
    imports = f"{begin}from called import inner\nfrom constants import FACTOR\n"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }

    def outer(number: int, factor: int = 1, home: str = "before") -> tuple[str, int]:
        texts = {
            "calls": (f"{imports}from {home} import Pair\n{calls}", 1),
            "called": (f"{begin}\n@bare\ndef inner(x):\n    return x + {number}\n", number),
            "constants": (f"FACTOR = {factor}\n", factor),
            home: ("from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    x: int\n", 1),
        }
        for file in tmp_path.glob("*.py"):
            file.unlink()
        for name, (text, changed_s) in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            os.utime(tmp_path / f"{name}.py", (changed_s, changed_s))
        code = "print(outer(Pair(1)), sum(outer.stats.cache_hits.values()))"
        command = [sys.executable, "-c", f"from {home} import Pair; from calls import outer; {code}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        value, hits = done.stdout.split()
        return value, int(hits)

    assert outer(1) == ("2", 0)
    assert outer(1) == ("2", 1)
    assert outer(5) == ("6", 0)
    assert outer(5, 7) == ("42", 0)
    assert outer(5, 7, "after") == ("42", 0)


def test_kernels_are_compiled_as_long_as_they_may_be_and_then_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, "0")
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)  # nothing is kept that one of the others would find
    rows = np.array([(1, 0), (2, 0)], RECORD)
    first, second, third = (bare(cast("Any", _fill).py_func) for _ in range(3))
    with compiling_at_most(60.0):
        assert run_kernel(first, 1, rows.copy(), 0.5) == 1.5
        with compiling_at_most(0.0):
            assert run_kernel(second, 1, rows.copy(), 0.5) == run_few(third, 1, rows.copy(), 0.5) == 1.5
            assert first(rows.copy(), 0.5) == run_kernel(first, 1, rows.copy(), 0.5) == 1.5  # it was compiled before
        assert [len(each.signatures) for each in (first, second, third)] == [1, 0, 0]
        assert run_kernel(second, 1, rows.copy(), 0.5) == 1.5
    assert len(second.signatures) == 1


def test_a_kernel_that_nothing_else_can_run_is_compiled_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)
    direct = bare(cast("Any", _fill).py_func)
    with compiling_at_most(0.0):
        assert direct(np.array([(1, 0), (2, 0)], RECORD), 0.5) == 1.5


def test_compiling_beforehand_ends_where_it_may_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)
    early, late = (bare(cast("Any", _fill).py_func) for _ in range(2))
    rows = np.array([(1, 0), (2, 0)], RECORD)
    assert compiled_in_time(lambda: early(rows, 0.5))
    with compiling_at_most(0.0):
        assert compiled_in_time(lambda: early(rows, 0.5))
        assert not compiled_in_time(lambda: late(rows, 0.5))
        with pytest.raises(TypeError, match="argument"):
            compiled_in_time(early)
    assert [len(each.signatures) for each in (early, late)] == [1, 0]


def test_what_a_kernel_raises_is_raised_although_there_was_no_time_to_compile_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, "0")
    _add(np.zeros(2, RECORD), 0, 1.0)
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)
    with compiling_at_most(0.0):
        run_kernel(bare(cast("Any", _fill).py_func), 1, np.zeros(2, RECORD), 1.0)
        with pytest.raises(TypeError, match="argument"):
            run_kernel(cast("Any", _add), 1, np.zeros(2, RECORD))


def test_what_a_kernel_takes_to_compile_is_missing_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, "0")
    monkeypatch.setattr(Locator, "from_function", lambda *_: None)
    first, second = (bare(one_more) for _ in range(2))
    with compiling_at_most(1e-3):  # of which the first takes more, and is not left half done
        assert run_kernel(first, 1, 1) == run_kernel(second, 1, 1) == 2
    assert [len(cast("Any", each).signatures) for each in (first, second)] == [1, 0]
