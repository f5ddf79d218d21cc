"""Values by device: written as benchmark_app takes them, and kept among the properties of devices."""

from __future__ import annotations

import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.runtime.machine.devices import PRECISION, parse_values, with_values

DEVICES = (*(DeviceSpec.parse(f"{name}=CPU") for name in "AB"), DeviceSpec("CPU", "CPU"))
OPTION = "infer-precision"


def hints(text: str, devices: tuple[DeviceSpec, ...] = DEVICES) -> dict[str, str | None]:
    found = with_values(devices, OPTION, PRECISION, parse_values(OPTION, text))
    return {spec.name: spec.properties.get(PRECISION) for spec in found}


def test_one_value_is_for_every_device_and_a_name_for_its_own() -> None:
    assert hints("f32") == {"A": "f32", "B": "f32", "CPU": "f32"}
    assert hints("A:bf16, B:f32") == {"A": "bf16", "B": "f32", "CPU": None}
    assert hints("f32,A:bf16") == {"A": "bf16", "B": "f32", "CPU": "f32"}


def test_the_name_of_a_plugin_is_for_all_devices_over_it_but_those_that_are_named() -> None:
    assert hints("CPU:bf16,A:f32") == {"A": "f32", "B": "bf16", "CPU": "bf16"}


@pytest.mark.parametrize("text", ["", "A:", ":f32", "f32,f16", "A:f16,A:f32"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--infer-precision"):
        parse_values(OPTION, text)


def test_absent_devices_and_two_values_for_one_device_are_refused() -> None:
    with pytest.raises(OptionError, match=r"names device 'GPU.1'; the devices are A, B, CPU"):
        hints("GPU.1:f16")
    own = (DeviceSpec.parse(f"A=CPU[{PRECISION}=f32]"),)
    with pytest.raises(OptionError, match=r"has INFERENCE_PRECISION_HINT=f32 among its properties, and .* says bf16"):
        hints("bf16", own)
    assert hints("f32", own) == {"A": "f32"}


def test_what_hsdag_itself_gave_to_a_device_is_no_value_of_its_own() -> None:
    pinned = with_values(DEVICES[:1], "pinning", "ENABLE_CPU_PINNING", {"": "YES"})
    assert pinned[0].properties["ENABLE_CPU_PINNING"] == "YES"
