"""The process that checks are made in; the first request names the devices."""

from __future__ import annotations

import time

import torch

from hsdag.commands.cuda_check.checks import Check, DeviceSetup, Untestable, function_of
from hsdag.commands.cuda_check.report import Ending, Item
from hsdag.ir.errors import HsdagError
from hsdag.ir.processes import main
from hsdag.runtime.torch_backend.specs import logical_device
from hsdag.runtime.torch_ops import allow_tf32


class Checker:
    """Makes one check after another on the same devices."""

    def __init__(self, setup: DeviceSetup) -> None:
        allow_tf32(False)
        self._devices = [logical_device(spec) for spec in setup.devices]

    def handle(self, request: Check) -> Item:
        """The outcome of a check. What it raises beside its own endings is a defect, which the client reports."""
        function, arguments = function_of(request.name)
        begin_s = time.perf_counter()
        try:
            ending, detail = Ending.PASS, function(self._devices, *arguments)
        except Untestable as reason:
            ending, detail = Ending.UNTESTED, str(reason)
        except (HsdagError, AssertionError, RuntimeError, torch.OutOfMemoryError) as failure:
            ending, detail = Ending.FAIL, " ".join(str(failure).split())
        return Item(request.name, ending, detail, time.perf_counter() - begin_s)


if __name__ == "__main__":
    main(lambda setup, _: Checker(setup))
