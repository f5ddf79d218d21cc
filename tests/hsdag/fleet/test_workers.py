"""Workers by the words of a user."""

from __future__ import annotations

import pytest

from hsdag.fleet.workers import check_workers, make_pool
from hsdag.ir.errors import DeviceError, OptionError

LONG = "local:" + "1" * 5000
"""More digits than Python reads as a number."""


@pytest.mark.parametrize("words", ["local", "local:1", "local:1024"])
def test_processes_of_this_machine_need_nothing(words: str) -> None:
    check_workers(words)


@pytest.mark.parametrize(
    "words", ["", "2", "local:", "local:0", "local:1025", "local:two", "ray:", "ray://host", LONG, f"ray://{LONG}"]
)
def test_what_names_no_workers_is_refused(words: str) -> None:
    with pytest.raises(OptionError, match=r"--workers"):
        check_workers(words)


def test_ray_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.fleet.workers.find_spec", lambda _: None)
    with pytest.raises(OptionError, match=r"pip install hsdag\[ray\]"):
        check_workers("ray")


def test_where_nothing_listens_the_user_is_told_at_once() -> None:
    pytest.importorskip("ray")
    with pytest.raises(DeviceError, match=r"no Ray cluster answers at ray://127.0.0.1:1 .*ray start --head"):
        make_pool("ray://127.0.0.1:1")
