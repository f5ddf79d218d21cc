"""Which settings are tried on a device: what its plugin supports, what the user has left open, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.settings import (
    Offer,
    Processors,
    Purpose,
    in_benchmark_app,
    raises,
    setting_in_words,
    setting_stages,
)

CPU = DeviceSpec("CPU", "CPU")
DEFAULT = {
    "INFERENCE_PRECISION_HINT": "bf16",
    "INFERENCE_NUM_THREADS": "8",
    "NUM_STREAMS": "1",
    "ENABLE_CPU_PINNING": "YES",
    "ENABLE_HYPER_THREADING": "NO",
    "KV_CACHE_PRECISION": "u8",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
}
OFFER = Offer(frozenset(DEFAULT), frozenset({"FP32", "BF16", "FP16"}), DEFAULT, streams=4)
CORES = Processors(8, 8)
SINGLE = "INFERENCE_PRECISION_HINT=f32"


def tried(spec: DeviceSpec = CPU, offer: Offer = OFFER, purpose: Purpose | None = None, **cores: Any) -> list[str]:
    """Every setting in one text."""
    found = setting_stages(spec, offer, purpose or Purpose(), replace(CORES, **cores))
    return [";".join(f"{key}={value}" for key, value in each.items()) for stage in found for each in stage]


def test_a_cpu_is_tried_in_single_precision_with_fewer_threads_and_without_pinning() -> None:
    few = [f"INFERENCE_NUM_THREADS={num}" for num in (4, 2, 1)]
    assert tried() == ["INFERENCE_PRECISION_HINT=f32", *few, "ENABLE_CPU_PINNING=NO"]


def test_a_lower_precision_is_tried_only_where_that_is_allowed() -> None:
    """f16 does not hold the largest values of bf16."""
    in_single = replace(OFFER, default={**DEFAULT, "INFERENCE_PRECISION_HINT": "f32"})
    assert not any("PRECISION" in each for each in tried(offer=in_single))
    lower = [each for each in tried(offer=in_single, purpose=Purpose(lowers=True)) if "PRECISION" in each]
    assert lower == ["INFERENCE_PRECISION_HINT=f16", "INFERENCE_PRECISION_HINT=bf16"]
    assert not raises({"INFERENCE_PRECISION_HINT": "f16"}, DEFAULT)


def test_what_the_user_has_set_or_the_plugin_does_not_know_stays() -> None:
    few = [f"INFERENCE_NUM_THREADS={num}" for num in (4, 2, 1)]
    given = DeviceSpec("CPU", "CPU", {"INFERENCE_PRECISION_HINT": "bf16", "ENABLE_CPU_PINNING": "YES"})
    assert tried(given) == few
    assert tried(offer=replace(OFFER, settable=frozenset({"INFERENCE_NUM_THREADS"}))) == few


def test_shares_of_a_cpu_are_tried_in_other_precisions_alone() -> None:
    assert tried(purpose=Purpose(is_part=True)) == ["INFERENCE_PRECISION_HINT=f32"]


def test_language_models_are_tried_with_caches_that_hold_more_and_without_quantisation() -> None:
    found = tried(purpose=Purpose(has_state=True, is_compressed=True, is_part=True))
    assert found[1:] == ["KV_CACHE_PRECISION=f16", "KV_CACHE_PRECISION=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0"]
    lowered = tried(purpose=Purpose(has_state=True, lowers=True, is_part=True))
    assert "KV_CACHE_PRECISION=u4" in lowered


def test_throughput_is_tried_with_all_numbers_of_streams() -> None:
    found = tried(offer=replace(OFFER, default={**DEFAULT, "NUM_STREAMS": "4"}), purpose=Purpose(is_steady=True))
    assert [each for each in found if "STREAMS" in each] == ["NUM_STREAMS=2", "NUM_STREAMS=1"]


def test_hyper_threads_and_kinds_of_cores_are_tried_where_there_are_some() -> None:
    more = "ENABLE_HYPER_THREADING=YES;INFERENCE_NUM_THREADS=16"
    assert more in tried(logical=16)
    assert more not in tried()
    kinds = replace(OFFER, settable=OFFER.settable | {"SCHEDULING_CORE_TYPE"})
    assert "SCHEDULING_CORE_TYPE=PCORE_ONLY" in tried(offer=kinds, is_hybrid=True)


def test_queues_of_gpus_and_npus_are_tried_and_then_single_precision() -> None:
    settable = frozenset({"GPU_QUEUE_THROTTLE", "NPU_TURBO", "INFERENCE_PRECISION_HINT", "ENABLE_CPU_PINNING"})
    found = tried(DeviceSpec("GPU", "GPU"), Offer(settable, frozenset({"FP16"}), {"INFERENCE_PRECISION_HINT": "f16"}))
    assert found == [*(f"GPU_QUEUE_THROTTLE={at}" for at in ("LOW", "HIGH")), "NPU_TURBO=YES", SINGLE]


def test_a_plugin_is_asked_what_it_offers_and_takes_every_setting() -> None:
    x = opset13.parameter([2, 8], name="x")
    model = ov.Model([opset13.exp(x)], [x], "small")
    core = ov.Core()
    offer = Offer.of(core, "CPU", core.compile_model(model, "CPU"))
    assert offer.default["NUM_STREAMS"] == "1"
    assert {"INFERENCE_PRECISION_HINT", "ENABLE_CPU_PINNING"} <= offer.settable
    assert "SUPPORTED_PROPERTIES" not in offer.settable
    threads = int(offer.default["INFERENCE_NUM_THREADS"])
    purpose = Purpose(lowers=True, has_state=True, is_compressed=True)
    for setting in (
        each for stage in setting_stages(CPU, offer, purpose, Processors(threads, threads)) for each in stage
    ):
        told = Offer.of(core, "CPU", core.compile_model(model, "CPU", setting)).default
        assert {key: told[key] for key in setting} == setting, setting


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"INFERENCE_PRECISION_HINT": "f32"}, "in f32 instead of bf16"),
        ({"INFERENCE_NUM_THREADS": "1"}, "with 1 thread instead of 8"),
        (
            {"ENABLE_CPU_PINNING": "NO", "NUM_STREAMS": "2"},
            "with threads that are not bound to cores and with 2 streams",
        ),
        ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}, "without dynamic quantisation"),
        ({"GPU_QUEUE_THROTTLE": "LOW"}, "with GPU_QUEUE_THROTTLE=LOW"),
    ],
)
def test_settings_are_said_in_words(setting: dict[str, str], words: str) -> None:
    assert setting_in_words(setting, {**DEFAULT, "NUM_STREAMS": ""}) == words


def test_what_benchmark_app_has_no_option_for_goes_into_its_file() -> None:
    single = {"INFERENCE_PRECISION_HINT": "f32"}
    assert in_benchmark_app("CPU", single) == "benchmark_app -d CPU -hint latency -infer_precision f32"
    streams = {"NUM_STREAMS": "2", "PERFORMANCE_HINT": "THROUGHPUT"}
    assert in_benchmark_app("CPU", streams, 4) == "benchmark_app -d CPU -hint none -nstreams 2 -nireq 4"
    assert in_benchmark_app("CPU", {"PERFORMANCE_HINT": "THROUGHPUT"}).endswith("-d CPU -hint throughput")
    file = 'benchmark_app -d CPU -load_config FILE with {"CPU": {"KV_CACHE_PRECISION": "f16"}} in the file'
    assert in_benchmark_app("CPU", {"KV_CACHE_PRECISION": "f16"}) == file
