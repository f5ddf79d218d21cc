"""Precision hints: written as benchmark_app takes them, and kept among the properties of devices."""

from __future__ import annotations

import pytest

from hsdag.ir import DeviceSpec, OptionError
from hsdag.runtime.platforms.devices import DeviceSet
from hsdag.runtime.platforms.precision import HINT, parse_precision, with_precision

DEVICES = DeviceSet(tuple(DeviceSpec.parse(f"{name}=CPU") for name in "AB"), (DeviceSpec("CPU", "CPU"),))


def hints(text: str) -> dict[str, str | None]:
    return {spec.name: spec.properties.get(HINT) for spec in with_precision(DEVICES, parse_precision(text)).all}


def test_one_precision_is_for_every_device_and_a_name_for_its_own() -> None:
    assert hints("f32") == {"A": "f32", "B": "f32", "CPU": "f32"}
    assert hints("A:bf16, B:f32") == {"A": "bf16", "B": "f32", "CPU": None}


def test_the_name_of_a_plugin_is_for_all_devices_over_it_but_those_that_are_named() -> None:
    assert hints("CPU:bf16,A:f32") == {"A": "f32", "B": "bf16", "CPU": "bf16"}


@pytest.mark.parametrize("text", ["", "A:", ":f32", "f32,A:f16", "A:f16,A:f32"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--infer-precision"):
        parse_precision(text)


def test_absent_devices_and_two_hints_for_one_device_are_refused() -> None:
    with pytest.raises(OptionError, match=r"names device 'GPU.1'; the devices are A, B, CPU"):
        hints("GPU.1:f16")
    own = DeviceSet((DeviceSpec.parse(f"A=CPU[{HINT}=f32]"),), ())
    with pytest.raises(OptionError, match=r"has INFERENCE_PRECISION_HINT=f32 among its properties, and .* says bf16"):
        with_precision(own, {"A": "bf16"})
    assert with_precision(own, {"A": "f32"}).placed == own.placed
