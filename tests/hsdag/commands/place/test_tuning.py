"""Settings in a search: what is raced on which device, what the answer carries, and what the next search knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openvino as ov
import pytest

import hsdag
from hsdag.commands.place import place, tuning
from hsdag.commands.place.comparison import FinalComparison, final_comparison
from hsdag.commands.place.records import DeviceSettings, TriedSetting
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.tuning import Tuned, one_device_sentence, settings_record, settings_sentence, tuned_devices
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import DeviceSet, default_of
from hsdag.runtime.machine.settings import Setting
from hsdag.runtime.measuring.latency import LatencyComparison, Samples
from hsdag.runtime.measuring.settings import Raced, Tried

CPU = DeviceSpec("CPU", "CPU")
SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
PINNING = {"ENABLE_CPU_PINNING": "NO"}

Won = Callable[[Setting], list[list[Setting]]]


@pytest.fixture
def won(monkeypatch: pytest.MonkeyPatch) -> Won:
    """Has a setting win all races, whatever is measured; the stages that were raced."""

    def win(setting: Setting) -> list[list[Setting]]:
        seen: list[list[Setting]] = []

        def race(stages: Sequence[Sequence[Setting]], *_: Any, **__: Any) -> Raced:
            seen.append([each for stage in stages for each in stage])
            return Raced(setting, (Tried(setting, None),), is_decided=True)

        monkeypatch.setattr(tuning, "race", race)
        return seen

    return win


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path / "cache"))


def answered(model: Path, answer: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> PlaceResult:
    """A search whose comparison ends with this answer."""

    def compared(*args: Any, **kwargs: Any) -> FinalComparison:
        found = final_comparison(*args, **kwargs)
        verdicts = {answer: found.verdicts[found.answer]}
        return replace(found, answer=answer, best_single=answer, verdicts=verdicts)

    monkeypatch.setattr(place, "final_comparison", compared)
    return hsdag.place(model, **{"devices": "CPU", "budget": "60s", **given})


def test_one_cpu_has_an_answer_whose_placement_carries_the_settings(
    tiny_resnet: Path, won: Won, monkeypatch: pytest.MonkeyPatch
) -> None:
    won({**SINGLE, **PINNING})
    found = answered(tiny_resnet, "CPU", monkeypatch)
    assert {row.name for row in found.rows} == {"CPU", "CPU_default"}
    assert found.placement.devices == [DeviceSpec("CPU", "CPU", {**SINGLE, **PINNING})]
    assert set(found.placement.affinity.values()) == {"CPU"}
    assert found.lines[0].startswith("Run the whole model on CPU in f32 instead of ")
    assert found.setting.endswith("benchmark_app -d CPU -hint none -infer_precision f32 -pin NO")
    compiled = hsdag.compile_model(tiny_resnet, found.placement)
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


def test_a_default_that_is_not_beaten_is_the_answer_and_the_settings_are_forgotten(
    tiny_resnet: Path, won: Won, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = won(PINNING)
    found = answered(tiny_resnet, "CPU_default", monkeypatch)
    assert found.placement.devices == [CPU]
    assert set(found.placement.affinity.values()) == {"CPU"}
    assert found.lines[0].startswith("Run the whole model on CPU: ")
    assert [each.setting for each in found.settings] == [{}]
    assert found.weight_bytes["CPU"] > 0
    hsdag.place(tiny_resnet, "CPU", budget="60s")
    assert len(seen) == 2


@pytest.mark.slow
def test_what_a_race_found_is_kept_for_the_next_search_of_the_model(
    tiny_resnet: Path, won: Won, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = won(PINNING)
    for fresh in (False, False, True):
        found = answered(tiny_resnet, "CPU", monkeypatch, fresh=fresh)
        assert [each.setting for each in found.settings] == [PINNING]
    assert len(seen) == 2


def test_shares_of_the_cpu_are_raced_once_and_in_precision_alone_and_the_whole_in_all(
    tiny_resnet: Path, won: Won
) -> None:
    seen = won(SINGLE)
    found = hsdag.place(tiny_resnet, "CPU", partition_cpu=2, budget="60s", method="best-device", reward="measured")
    assert len(seen) == 2
    whole, part = seen
    assert PINNING in whole
    assert {key for each in part for key in each} <= {"INFERENCE_PRECISION_HINT"}
    own = {spec.name: spec.properties.get("INFERENCE_PRECISION_HINT") for spec in found.placement.devices}
    assert own in ({"CPU_0": "f32", "CPU_1": "f32", "CPU": "f32"}, {"CPU_0": "f32", "CPU_1": "f32", "CPU": None})
    assert {"CPU", "CPU_default"} <= {row.name for row in found.rows}


def test_what_the_user_has_set_is_not_tried(tiny_resnet: Path, won: Won) -> None:
    seen = won({})
    hsdag.place(tiny_resnet, "CPU[INFERENCE_NUM_THREADS=1;ENABLE_CPU_PINNING=NO]", budget="60s", infer_precision="f32")
    assert seen == []


def test_lower_precisions_are_tried_where_any_is_allowed(tiny_resnet: Path, won: Won) -> None:
    seen = won({})
    given = "CPU[INFERENCE_NUM_THREADS=1]"
    hsdag.place(tiny_resnet, given, budget="60s", infer_precision="any")
    default = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    able = {"f32"} | {name for key, name in (("FP16", "f16"), ("BF16", "bf16")) if key in capabilities}
    assert {each["INFERENCE_PRECISION_HINT"] for each in seen[0]} == able - {default}


@pytest.mark.slow
def test_for_throughput_the_answer_has_streams_and_requests_and_the_file_the_hint(
    tiny_resnet: Path, won: Won, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device of one stream is busy with two requests."""
    won({"NUM_STREAMS": "1"})
    found = answered(tiny_resnet, "CPU", monkeypatch, objective="throughput")
    (device,) = found.placement.devices
    assert device.properties == {"NUM_STREAMS": "1", "PERFORMANCE_HINT": "THROUGHPUT"}
    assert "with 2 requests in flight; elsewhere: benchmark_app -d CPU -hint none -nstreams 1 -nireq 2" in found.setting


@pytest.mark.slow
def test_a_start_keeps_the_settings_that_its_file_has(
    tiny_resnet: Path, won: Won, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = won(PINNING)
    first = answered(tiny_resnet, "CPU", monkeypatch)
    again = answered(tiny_resnet, "CPU", monkeypatch, start=first.placement)
    assert again.placement.devices == first.placement.devices
    assert len(seen) == 1


@pytest.mark.slow
def test_a_search_that_is_resumed_has_the_settings_that_it_began_with(
    tiny_resnet: Path, won: Won, tmp_path: Path
) -> None:
    seen = won(SINGLE)
    given: dict[str, Any] = {
        "partition_cpu": 2,
        "method": "best-device",
        "reward": "measured",
        "run_folder": tmp_path / "run",
    }
    first = hsdag.place(tiny_resnet, "CPU", budget="30s", **given)
    again = hsdag.place(tiny_resnet, "CPU", budget="60s", resume=True, **given)
    assert len(seen) == 2
    assert {row.name for row in again.rows} == {row.name for row in first.rows}
    assert {each.device: each.setting for each in again.settings} == {each.device: SINGLE for each in first.settings}
    parts = [spec for spec in again.placement.devices if spec.is_added]
    assert [spec.properties["INFERENCE_PRECISION_HINT"] for spec in parts] == ["f32", "f32"]


def test_devices_as_they_were_given_are_rivals_under_names_that_openvino_can_load() -> None:
    """An added device of the same plugin has the plugin's own defaults."""
    gpu = DeviceSpec("GPU.1", "GPU.1")
    beside = replace(gpu, name="GPU1_default")
    found = {"GPU.1": Tuned(gpu, replace(gpu, properties={"GPU_QUEUE_THROTTLE": "LOW"}), beside=beside)}
    devices = tuned_devices(DeviceSet((CPU, gpu), ()), found)
    assert beside.openvino_name == "GPU1_default.1"
    assert (devices.rivals, devices.defaults, devices.whole_devices) == ((beside,), {"GPU1_default": "GPU.1"}, ())
    assert devices.answering("GPU1_default") == [CPU, gpu]
    assert devices.answering("placement 1") == [CPU, found["GPU.1"].spec]


@pytest.mark.parametrize(("others", "ratio"), [(0.0, 1.5), (0.9, None)])
def test_a_gain_beside_other_programs_that_disturb_it_is_no_figure(others: float, ratio: float | None) -> None:
    """By rounds that differ: the interval of the first two rounds is wide."""
    samples = {"CPU": Samples(((1.0,), (1.0,))), "CPU_default": Samples(((1.0,), (2.25,)))}
    final = SimpleNamespace(comparison=LatencyComparison(samples, {}), answer="CPU", others=others)
    tuned = Tuned(CPU, replace(CPU, properties=SINGLE), beside=default_of(CPU))
    assert settings_record(tuned, cast(FinalComparison, final)).ratio == (ratio and pytest.approx(ratio))


def test_settings_are_said_with_what_they_gain() -> None:
    found = DeviceSettings(device="CPU", setting=SINGLE, words="in f32 instead of bf16", ratio=1.31, ci95=(1.29, 1.33))
    nearer = found.model_copy(update={"apart": (4e-3, 1e-6)})
    assert nearer.gain == "31% faster than as OpenVINO sets it up, and nearer to the model's own numbers"
    assert settings_sentence([nearer], ["CPU"]) == (
        "CPU in f32 instead of bf16 is 31.0% faster (95% interval 29.0% to 33.0%) than as OpenVINO sets it up, "
        "and nearer to the model's own numbers."
    )
    parts = [nearer.model_copy(update={"device": name, "ratio": None, "ci95": (None, None)}) for name in ("A", "B")]
    assert settings_sentence([*parts, found], ["A", "B"]) == (
        "A and B are used in f32 instead of bf16, nearer to the model's own numbers."
    )


def test_one_device_on_which_nothing_is_gained_says_what_was_tried() -> None:
    none = DeviceSettings(device="CPU", tried=(TriedSetting(setting=PINNING), TriedSetting(setting=SINGLE)))
    assert one_device_sentence(none, "CPU", "").startswith(
        "CPU is not faster with any of 2 other settings that were tried; to gain more, name"
    )
    doubtful = none.model_copy(update={"is_decided": False})
    assert "is not decided: repeat it with more time" in one_device_sentence(doubtful, "CPU", "")
    assert "no settings of it were tried" in one_device_sentence(None, "CPU", "")
