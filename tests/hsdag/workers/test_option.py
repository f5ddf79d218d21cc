"""The option --workers: which workers can be asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hsdag.base.errors import OptionError
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.workers.option import check_workers, pool_of
from hsdag.workers.pool import Pool
from tests.hsdag.workers.here import Here


@pytest.mark.parametrize(("words", "count"), [("local", usable_cpus()), ("local:1", 1), ("local:999", 999)])
def test_processes_of_this_machine_are_as_many_as_are_asked_for(words: str, count: int) -> None:
    check_workers(words)
    with pool_of(words) as pool:
        assert isinstance(pool, Pool)
        assert pool.num_workers == count
    with pool_of(None) as pool:
        assert pool is None


@pytest.mark.parametrize(("words", "address"), [("ray", "auto"), ("ray://host:1", "ray://host:1")])
def test_a_cluster_is_connected_to_by_its_address_until_the_end(
    words: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def connect(at: str) -> list[Here]:
        calls.append(at)
        return [Here("a"), Here("b")]

    cluster = SimpleNamespace(connect=connect, disconnect=lambda: calls.append("bye"))
    monkeypatch.setitem(sys.modules, "hsdag.workers.cluster", cluster)
    with pool_of(words) as pool:
        assert isinstance(pool, Pool)
        assert (pool.num_workers, calls) == (2, [address])
    assert calls == [address, "bye"]


LONG = "ray://local:" + "1" * 5000
"""More digits than Python reads as a number."""


@pytest.mark.parametrize("words", ["", "2", "local:", "local:0", "local:1000", "local:two", "ray:", "ray://host", LONG])
def test_what_names_no_workers_is_refused(words: str) -> None:
    with pytest.raises(OptionError, match=r"workers"):
        check_workers(words)


def test_ray_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.workers.option.find_spec", lambda name: None if name == "ray" else 1)
    check_workers("local")
    with pytest.raises(OptionError, match=r"pip install -c constraints.txt -e '\.\[ray\]'"):
        check_workers("ray")
