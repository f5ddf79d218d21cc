"""Settings of a device that are worth trying on a model, according to what its plugin supports.

A setting is a few of OpenVINO's properties with their values as text. Settings come in stages: of each stage the best
is kept, and the next stage is tried on top of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import PRECISION, property_text

Setting: TypeAlias = dict[str, str]
"""Values by property."""

THREADS, STREAMS, PINNING = "INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING"
HYPER_THREADING, CORE_TYPE = "ENABLE_HYPER_THREADING", "SCHEDULING_CORE_TYPE"
CACHE, GROUP = "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"
HINT = "PERFORMANCE_HINT"
REQUESTS = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"

TOLD = (HINT, PRECISION, THREADS, STREAMS, PINNING, HYPER_THREADING, CORE_TYPE, CACHE, GROUP, REQUESTS)
"""Properties that a compiled model is asked for."""

OF_NUMBERS = {PRECISION, CACHE, GROUP}
"""Properties that change the computed numbers; other properties change only how they are computed."""

PRECISIONS = {"FP16": "f16", "BF16": "bf16"}
"""Names of precisions below single in a device's capabilities, and in INFERENCE_PRECISION_HINT."""

HELD = {"f32": ("f16", "bf16", "u8", "i8", "u4", "i4"), "f16": ("u8", "i8", "u4", "i4")}
"""Precisions that each precision contains: to replace one of them by it raises the precision."""

LARGER_GROUPS = (64, 128)
"""Numbers of values that share a scale in dynamic quantisation, beside the plugin's default 32."""

QUEUES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("GPU_QUEUE_THROTTLE", ("LOW", "HIGH")),
    ("GPU_QUEUE_PRIORITY", ("HIGH", "LOW")),
    ("MODEL_PRIORITY", ("HIGH",)),
    ("NPU_TURBO", ("YES",)),
)
"""Properties of GPUs and NPUs that control queueing, and values beside the default."""


@dataclass(frozen=True)
class Offer:
    """What a plugin lets one set, in which precisions the device can compute, and its defaults for a model.

    ``default`` are values by property, as a compiled model reports them, and ``streams`` the most that there may be.
    """

    settable: frozenset[str]
    capabilities: frozenset[str]
    default: Mapping[str, str] = field(default_factory=dict)
    streams: int = 1

    @staticmethod
    def of(core: Any, name: str, compiled: Any) -> Offer:
        """Read the offer of a device, by OpenVINO's name, for a model compiled for it under default settings."""
        supported = core.get_property(name, "SUPPORTED_PROPERTIES")
        told = compiled.get_property("SUPPORTED_PROPERTIES")
        streams = core.get_property(name, "RANGE_FOR_STREAMS")[1] if "RANGE_FOR_STREAMS" in supported else 1
        return Offer(
            frozenset(str(key) for key, access in supported.items() if access == "RW"),
            frozenset(map(str, core.get_property(name, "OPTIMIZATION_CAPABILITIES"))),
            {key: property_text(compiled.get_property(key)) for key in TOLD if key in told},
            int(streams),
        )


@dataclass(frozen=True)
class Purpose:
    """The purpose of settings.

    ``is_steady`` is for throughput; ``lowers`` allows less precision than the plugin's default; the model may
    keep state in a cache and have compressed weights; ``is_part`` is for a share of a device, whose threads are given.
    ``has_streams`` is for a device that runs whole models: parts of a model run one at a time, on all threads.
    """

    is_steady: bool = False
    has_streams: bool = True
    lowers: bool = False
    has_state: bool = False
    is_compressed: bool = False
    is_part: bool = False


@dataclass(frozen=True)
class Processors:
    """Numbers of logical processors and physical cores; ``is_hybrid`` if there are two kinds of cores."""

    logical: int
    physical: int
    is_hybrid: bool = False


def raises(setting: Mapping[str, str], default: Mapping[str, str]) -> bool:
    """Return whether every property of a setting that changes the computed numbers makes them more precise."""
    for key in OF_NUMBERS & setting.keys():
        default_value = default.get(key, "")
        if key == GROUP:
            if default_value == "0" or setting[key] != "0":
                return False
        elif default_value not in HELD.get(setting[key], ()):
            return False
    return True


def setting_stages(
    spec: DeviceSpec, offer: Offer, purpose: Purpose, processors: Processors
) -> tuple[tuple[Setting, ...], ...]:
    """Return the settings to try, stage by stage, the most promising first; properties that the user has set stay.

    Settings with less precision than the default are left out unless the purpose allows them.
    """
    chosen = []
    for stage in _all_stages(offer, purpose, processors):
        kept = tuple(
            setting
            for setting in stage
            if setting.keys() <= offer.settable
            and not setting.keys() & spec.properties.keys()
            and any(offer.default.get(key) != value for key, value in setting.items())
            and (purpose.lowers or raises(setting, offer.default))
        )
        if kept:
            chosen.append(kept)
    return tuple(chosen)


def _all_stages(offer: Offer, purpose: Purpose, processors: Processors) -> Iterator[Sequence[Setting]]:
    lower = [PRECISIONS[capability] for capability in PRECISIONS if capability in offer.capabilities]
    precisions = [{PRECISION: precision} for precision in ("f32", *lower)]
    is_cpu = THREADS in offer.settable
    if is_cpu:
        yield precisions
    if purpose.has_state:
        yield [{CACHE: precision} for precision in ("f16", "f32", "u8", "u4")]
    if purpose.is_compressed:
        yield [{GROUP: str(size)} for size in (0, *LARGER_GROUPS)]
    if not purpose.is_part and purpose.is_steady and purpose.has_streams:
        yield [{STREAMS: str(num)} for num in _halves_of(2 * offer.streams)]
    if not purpose.is_part and is_cpu:
        yield _threads(offer, purpose, processors)
        yield [{PINNING: "NO" if offer.default.get(PINNING) == "YES" else "YES"}]
    for key, values in () if purpose.is_part else QUEUES:
        yield [{key: value} for value in values]
    if not is_cpu:  # compiling for another precision takes long there
        yield precisions


def _threads(offer: Offer, purpose: Purpose, processors: Processors) -> list[Setting]:
    """Return settings with cores of one kind, all threads, and fewer threads."""
    by_default = int(offer.default.get(THREADS, processors.physical))
    settings: list[Setting] = []
    if processors.is_hybrid:
        settings += [{CORE_TYPE: "PCORE_ONLY"}, {CORE_TYPE: "ANY_CORE"}]
    if processors.logical > processors.physical:
        settings += [{HYPER_THREADING: "YES", THREADS: str(processors.logical)}]
        settings += [{HYPER_THREADING: "NO", THREADS: str(processors.physical)}]
    fewer = [{THREADS: str(num)} for num in _halves_of(by_default)]
    return settings + (fewer[:1] if purpose.is_steady else fewer)


def _halves_of(number: int) -> list[int]:
    """Return half of a number, half of that and so on, down to 1."""
    halves = []
    while number > 1:
        number //= 2
        halves.append(number)
    return halves


FLAGS = {
    PRECISION: "-infer_precision",
    THREADS: "-nthreads",
    STREAMS: "-nstreams",
    PINNING: "-pin",
}
"""Option of benchmark_app for each property that has one."""

_NAMES = {
    PRECISION: "in {}",
    THREADS: "with {} threads",
    STREAMS: "with {} streams",
    CACHE: "with its cache in {}",
    GROUP: "quantising groups of {} values",
}
_TOGETHER = {
    (PINNING, "NO"): "with threads that are not bound to cores",
    (PINNING, "YES"): "with threads that are bound to cores",
    (HYPER_THREADING, "YES"): "with hyper-threading",
    (HYPER_THREADING, "NO"): "without hyper-threading",
    (CORE_TYPE, "PCORE_ONLY"): "on performance cores",
    (CORE_TYPE, "ANY_CORE"): "on all kinds of cores",
    (GROUP, "0"): "without dynamic quantisation",
    (THREADS, "1"): "with 1 thread",
    (STREAMS, "1"): "with 1 stream",
}


def setting_in_words(setting: Mapping[str, str], default: Mapping[str, str]) -> str:
    """Return a setting in words, with the plugin's default where that is a number or a type."""
    words = []
    for key, value in setting.items():
        usual = default.get(key, "")
        said = _TOGETHER.get((key, value)) or _NAMES.get(key, f"with {key}={{}}").format(value)
        words.append(f"{said} instead of {usual}" if usual and key in _NAMES and (key, value) != (GROUP, "0") else said)
    return " and ".join(words)


def in_benchmark_app(device: str, setting: Mapping[str, str], requests: int | None = None) -> str:
    """Return the benchmark_app command with the same setting; properties without an option go into a file.

    ``requests`` is the number of requests in flight, if given.
    """
    in_flight = "" if requests is None else f" -nireq {requests}"
    others = {key: value for key, value in setting.items() if key != HINT}
    if others.keys() <= FLAGS.keys():
        flags = "".join(f" {FLAGS[key]} {value}" for key, value in others.items())
        is_fine = bool(others.keys() - {PRECISION})  # for a precision alone it takes a hint
        hint = "none" if is_fine else setting.get(HINT, "latency").lower()
        return f"benchmark_app -d {device} -hint {hint}{flags}{in_flight}"
    file = json.dumps({device: dict(setting)})
    return f"benchmark_app -d {device}{in_flight} -load_config FILE with {file} in the file"
