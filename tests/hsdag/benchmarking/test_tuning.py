"""How bench compiles and how long it runs, in benchmark_app's terms."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hsdag.benchmarking.tuning import Tuning, in_flight
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError

CPU, FAST, GPU = DeviceSpec("CPU", "CPU"), DeviceSpec("FAST", "CPU", {"NUM_STREAMS": "1"}), DeviceSpec("GPU.1", "GPU.1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tput", "THROUGHPUT"), ("ctput", "CUMULATIVE_THROUGHPUT"), ("latency", "LATENCY"), ("none", None)],
)
def test_a_hint_goes_to_the_compiler_by_openvinos_name(text: str, expected: str | None) -> None:
    assert Tuning(hint=text).properties() == {"PERFORMANCE_HINT": expected}


def test_what_tunes_finely_takes_the_place_of_a_hint() -> None:
    assert Tuning().properties() == {}
    assert Tuning(threads=2).properties() == {"PERFORMANCE_HINT": None}
    assert Tuning(cache_dir=Path("c"), requests=3).properties() == {
        "CACHE_DIR": "c",
        "PERFORMANCE_HINT_NUM_REQUESTS": 3,
    }
    with pytest.raises(OptionError, match="--nstreams replaces what --hint tput would choose"):
        Tuning(hint="tput", streams="4")


def test_values_go_to_the_device_then_to_its_plugin_then_to_all() -> None:
    slow = DeviceSpec("SLOW", "CPU")
    cpu, own, gpu = Tuning(streams="CPU:4,SLOW:2", precision="f32").of_devices((CPU, slow, GPU), ())
    assert cpu.properties == {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "4"}
    assert own.properties["NUM_STREAMS"] == "2"
    assert gpu.properties == {"INFERENCE_PRECISION_HINT": "f32"}


def test_a_property_that_a_device_was_given_is_not_replaced() -> None:
    with pytest.raises(OptionError, match="'FAST' has NUM_STREAMS=1 among its properties, and --nstreams says 4"):
        Tuning(streams="4").of_devices((CPU, FAST), ())


def test_threads_and_pinning_are_the_cpus() -> None:
    cpu, gpu = Tuning(threads=3, pinning="NO").of_devices((CPU, GPU), ())
    assert cpu.properties == {"INFERENCE_NUM_THREADS": "3", "ENABLE_CPU_PINNING": "NO"}
    assert gpu.properties == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hint": "fast"}, "unknown hint 'fast'; choose one of latency"),
        ({"requests": 0}, "--nireq must be at least 1, not 0"),
        ({"pinning": "maybe"}, "--pinning must be YES or NO"),
        ({"streams": "CPU:"}, "--nstreams 'CPU:': 'CPU:' is neither of the form DEVICE:VALUE"),
        ({"precision": "f32,f16"}, "--infer-precision 'f32,f16' gives every device two values"),
    ],
)
def test_what_is_out_of_range_is_told(given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Tuning(**given)  # type: ignore[arg-type]


def test_properties_of_devices_are_refused_for_what_is_none() -> None:
    with pytest.raises(OptionError, match="AUTO:CPU has its own properties"):
        Tuning(threads=1).of_devices((CPU,), ("AUTO:CPU",))
    with pytest.raises(OptionError, match="--nstreams names device 'GPU'; the devices are CPU"):
        Tuning(streams="GPU:1").of_devices((CPU,), ())


def test_a_number_of_inferences_ends_a_measurement_without_a_time() -> None:
    protocol = Tuning(iterations=25).protocol(None)
    assert protocol.min_rounds == protocol.max_rounds == 10
    assert protocol.turn_runs == 3  # rounded up to whole rounds: 30
    assert protocol.limit_s == math.inf
    assert in_flight(Tuning(iterations=400).protocol(None)).turn_runs == 10  # of 4 inferences each
    few = Tuning(iterations=3).protocol(None)
    assert (few.max_rounds, few.turn_runs) == (3, 1)


def test_with_a_time_too_the_longer_of_both_ends_it() -> None:
    protocol = Tuning(iterations=20).protocol(5.0)
    assert (protocol.limit_s, protocol.min_rounds, protocol.max_rounds) == (5.0, 10, 100_000)
    assert Tuning().protocol(5.0).turn_runs is None
