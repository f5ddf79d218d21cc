"""Workloads by a text that says all about them."""

from __future__ import annotations

import pytest

from hsdag.ir.errors import OptionError
from hsdag.models.registry import names_workload, workload_called


def test_a_workload_without_options_is_made_for_the_devices_at_hand() -> None:
    text, workload = workload_called("transformer", 3)
    assert text == "transformer[devices=3]"
    assert workload.graph.num_ops == workload_called(text, 7)[1].graph.num_ops


def test_the_size_of_a_workload_is_that_of_its_rows() -> None:
    text, workload = workload_called("chainmm[size=64;devices=2]", 5)
    assert text == "chainmm[size=64;devices=2]"
    assert workload.graph.shape_of(0)[0] == 64 // 2


def test_one_device_gets_a_workload_for_two() -> None:
    assert workload_called("ffnn[size=64]", 1)[0] == "ffnn[size=64;devices=2]"


@pytest.mark.parametrize(
    ("text", "is_one"), [("chainmm", True), ("ffnn[size=8]", True), ("model.xml", False), ("gpt2[size=8]", False)]
)
def test_names_of_workloads_are_told_from_files(text: str, is_one: bool) -> None:
    assert names_workload(text) is is_one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chainmm[64]", "'64' is not of the form OPTION=VALUE"),
        ("chainmm[size=big]", "size must be a whole number, not 'big'"),
        ("chainmm[size=0]", "the size of chainmm must be at least 1, not 0"),
        ("chainmm[size=63]", "chainmm over 2 devices"),
        ("transformer[size=8]", "transformer does not take --size"),
    ],
)
def test_a_wrong_option_is_named(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        workload_called(text, 2)
