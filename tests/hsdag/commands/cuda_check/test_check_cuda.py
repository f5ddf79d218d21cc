"""check_cuda: the whole report, and checks that crash, hang or are defects, in a process of their own."""

from __future__ import annotations

import sys

import pytest

from hsdag.commands.cuda_check import CudaReport, Ending, Item, check_cuda
from hsdag.ir.errors import DeviceError

ODD = """
import os, sys, time
from hsdag.commands.cuda_check.report import Ending, Item
from hsdag.ir.processes import main

class Odd:
    def __init__(self, setup, channel): pass
    def handle(self, request):
        if request.name == "devices": os._exit(3)
        if request.name == "launch cost": time.sleep(60)
        if request.name == "peer access": return {}["no such key"]
        return Item(request.name, Ending.PASS, "fine")

main(Odd)
"""


def item(name: str, report: CudaReport) -> Item:
    return next(each for each in report.items if each.name == name)


@pytest.mark.slow
def test_a_check_that_crashes_hangs_or_is_a_defect_fails_alone() -> None:
    names = ["devices", "launch cost", "peer access", "memory limit"]
    steps = list[str]()
    found = check_cuda(
        "A=cpu,B=cpu", only=names, limit_s=1.0, command=(sys.executable, "-c", ODD), on_step=steps.append
    )
    assert [each.ending for each in found.items].count(Ending.FAIL) == 3
    assert "exited with code 3" in item("devices", found).detail
    assert "gave no answer within 1 s and was killed" in item("launch cost", found).detail
    assert "KeyError" in item("peer access", found).detail
    assert item("memory limit", found).ending is Ending.PASS
    assert {each.name for each in found.failed} == {"devices", "launch cost", "peer access"}
    assert steps == [f"checking {each.name}" for each in found.items]


def test_without_a_gpu_logical_devices_stand_in_and_the_report_says_so() -> None:
    found = check_cuda(only=["launch cost", "captured against dynamic"])
    if found.is_on_gpu:
        pytest.skip("there is a GPU here")
    assert [each.ending for each in found.items] == [Ending.UNTESTED, Ending.PASS]
    assert found.sentence.endswith(
        "1 pass, 1 not testable here. No CUDA device was used: the engine ran on logical devices of the CPU (A, B), "
        "whose figures say nothing of a GPU."
    )
    assert found.document()["is_on_gpu"] is False


def test_the_table_is_markdown_whatever_the_details_are() -> None:
    items = (Item("copies", Ending.PASS, "A|B\n1 GB/s"), Item("peer", Ending.UNTESTED, "one GPU"))
    table = CudaReport(("cuda:0",), {"torch": "2.13"}, True, items).markdown()
    assert table.splitlines() == [
        "Of 2 checks on cuda:0: 1 pass, 1 not testable here.",
        "torch 2.13",
        "",
        "| check | outcome | detail |",
        "|---|---|---|",
        "| copies | pass | A\\|B 1 GB/s |",
        "| peer | not testable here | one GPU |",
    ]


def test_a_device_that_is_not_here_is_an_error_before_any_check() -> None:
    with pytest.raises(DeviceError, match="torch finds no cuda:99 here"):
        check_cuda("cuda:99")
