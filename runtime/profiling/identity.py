"""The identity of a device: what its figures depend on beside the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openvino as ov

from hsdag.ir.device import DeviceSpec

Identify = Callable[[DeviceSpec], dict[str, Any]]
"""What a device's figures depend on."""


def identity(spec: DeviceSpec) -> dict[str, Any]:
    """What a device's figures depend on: the hardware by its full name, and the properties."""
    core = ov.Core()
    try:
        full_name = str(core.get_property(spec.plugin, "FULL_DEVICE_NAME"))
    except RuntimeError:
        full_name = ""
    return {"plugin": spec.plugin, "hardware": full_name, "properties": dict(sorted(spec.properties.items()))}


def torch_identity(spec: DeviceSpec) -> dict[str, Any]:
    """The same of a device of torch's."""
    import torch

    if spec.plugin == "cpu":
        return {"torch": torch.__version__, **identity(replace(spec, plugin="CPU"))}
    own = {
        "hardware": str(torch.cuda.get_device_name(spec.plugin)),
        "properties": dict(sorted(spec.properties.items())),
    }
    return {"torch": torch.__version__, "plugin": spec.plugin, **own}
