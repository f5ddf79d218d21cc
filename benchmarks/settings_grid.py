"""How near the settings that ``hsdag place`` finds come to the best of an exhaustive grid, on the CPU.

Each model is placed with no option but the budget, once for latency and once for throughput. Then every setting of the
grid is timed in common rounds in which losers are dropped: precisions that are no lower than the plugin's own, all
numbers of threads that are powers of two, threads bound to cores or not; for throughput streams in place of threads,
and for the language model the precision of its cache and dynamic quantisation as well. The best of the grid, the
setting that was found and OpenVINO's own are timed once more against each other, so that the best is not the luckiest.
For throughput the last two also take turns in OpenVINO's ``benchmark_app``, which the language model is left out of: it
lets the state grow. Models: resnet50, inception_v3, vit (ViT-B/16), encoder (BERT base's shape, 128 tokens), mobile
(inverted residuals with depthwise convolutions, 224 x 224), tiny_resnet (less than 1 ms) and stateful-llama-int8.

Missed where what was found is slower than 0.97 times the best of the grid, or than OpenVINO's own setting beyond its
interval (below 1.0 in benchmark_app by more than 2%); with --gain X where resnet50 gains less than X, such as 1.25 on a
CPU with bf16 and without AMX. Exit status 1 when something is missed. All of it takes about 12 minutes.

Usage: python benchmarks/settings_grid.py [PART ...] [--only MODEL] [--budget 30s] [--seconds 12] [--gain 1.25]
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import openvino as ov
import torch
from machine import options
from overlap import network
from torch import nn

import hsdag
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.session import Session
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.models.sizes import ModelInput
from hsdag.models.torch_networks import random_network, to_openvino
from hsdag.runtime.machine.devices import PRECISION, DeviceSet, resolve_devices
from hsdag.runtime.machine.settings import CACHE, GROUP, HINT, PINNING, STREAMS, THREADS, Setting, raises
from hsdag.runtime.measuring.latency import LatencyComparison, Protocol, Ratio, measure_in_rounds
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import Candidate, ask
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import find_objective

MODELS = ("resnet50", "inception_v3", "vit", "encoder", "mobile", "tiny_resnet", "stateful-llama-int8")
TOKENS = {"stateful-llama-int8": "64,1+64@4"}
BAR, OWN_BAR = 0.97, 0.98
BLOCKS = ((16, 24, 2, 2), (24, 32, 2, 3), (32, 64, 2, 4), (64, 96, 1, 3), (96, 160, 2, 3), (160, 320, 1, 1))
"""Channels before and after, stride and number of the inverted residuals of MobileNetV2 (Sandler et al. 2018, table 2),
which expand sixfold."""


class InvertedResidual(nn.Module):
    """1x1 convolution to six times the channels, 3x3 depthwise, 1x1 back; a sum with the input where shapes agree."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 6 * before
        self.is_residual = stride == 1 and before == after
        self.parts = nn.Sequential(
            *(nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] to the channels after, and H and W over the stride."""
        found: torch.Tensor = self.parts(x)
        return x + found if self.is_residual else found


class Mobile(nn.Sequential):
    """The shape of MobileNetV2: a convolution, inverted residuals, and a classifier of 1000 classes."""

    def __init__(self) -> None:
        blocks = [
            InvertedResidual(after if i else before, after, 1 if i else stride)
            for before, after, stride, count in BLOCKS
            for i in range(count)
        ]
        first = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        super().__init__(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 1000))


def saved(name: str, folder: Path) -> Path:
    """A model of this benchmark on disk."""
    path = folder / f"{name}.xml"
    if name != "mobile":
        return network(name, 12, path)
    given = (ModelInput("images", (1, 3, 224, 224), "f32"),)
    ov.save_model(to_openvino(random_network(Mobile, 0), name, given, ("logits",)), path, compress_to_fp16=False)
    return path


def grid(default: Mapping[str, str], capabilities: Sequence[str], *, steady: bool, tokens: bool) -> list[Setting]:
    """Every combination; settings that are the default in part are left out of a combination."""
    threads = int(default[THREADS])
    fewer = [str(2**power) for power in range(threads.bit_length()) if 2**power <= threads]
    precisions = ["f32", *(name for key, name in (("BF16", "bf16"), ("FP16", "f16")) if key in capabilities)]
    axes = {PRECISION: precisions, (STREAMS if steady else THREADS): fewer, PINNING: ["YES", "NO"]}
    if tokens:
        axes |= {CACHE: ["u8", "f16"], GROUP: ["0", "32"]}
    found: list[Setting] = []
    for values in itertools.product(*axes.values()):
        setting = {key: value for key, value in zip(axes, values, strict=True) if default.get(key) != value}
        if setting and setting not in found and raises(setting, default):
            found.append(setting)
    return found


def text(setting: Mapping[str, str]) -> str:
    """A setting as a name."""
    return " ".join(f"{key}={value}" for key, value in setting.items()) or "OpenVINO's own"


class Bench:
    """A model of which settings of the CPU are timed, for latency or throughput."""

    def __init__(self, path: Path, tokens: str | None, objective: str, seconds: float) -> None:
        self.seconds = seconds
        self.session = Session(path, resolve_devices("CPU", None), ModelInputs(scenarios=parse_scenarios((), tokens)))
        assert isinstance(self.session.devices, DeviceSet)
        self.runner = CandidateRunner(
            self.session.client, find_objective(objective), self.session.runner.limits, self.session.scenarios
        )

    def default(self) -> Mapping[str, str]:
        """The values that the plugin takes by itself."""
        self.runner.open("default", Candidate("CPU"))
        offer = self.session.client.call(ask(OpenVinoMeasurer.offer, "default", "CPU"), self.runner.limits.run_s)
        self.runner.close("default")
        return offer.default

    def compared(self, settings: Sequence[Setting], *, is_last: bool = False) -> LatencyComparison:
        """Settings by name, in common rounds; the last time all of them run to the end."""
        by_name = {text(each): each for each in settings}
        protocol = Protocol(limit_s=self.seconds, turn_s=0.1, hopeless=0.0 if is_last else 0.95)
        if is_last:
            protocol = replace(protocol, interval_width=0.0, limit_s=self.seconds / 2)
        found = measure_in_rounds(
            self.runner.run,
            list(by_name),
            list(by_name),
            protocol,
            np.random.default_rng(0),
            prepare=lambda name: self.runner.open(name, Candidate("CPU", properties=by_name[name])),
        )
        for name in list(self.runner.candidates):
            self.runner.close(name)
        return found


def in_benchmark_app(path: Path, settings: Sequence[Setting], seconds: float, folder: Path) -> list[float]:
    """Inferences a second of each setting beside the throughput hint, the median of three turns."""
    rates: list[list[float]] = [[] for _ in settings]
    for _, (i, setting) in itertools.product(range(3), enumerate(settings)):
        config = folder / "config.json"
        config.write_text(json.dumps({"CPU": setting}))
        command = [str(Path(sys.executable).with_name("benchmark_app")), "-m", str(path), "-d", "CPU"]
        command += ["-hint", "throughput", "-t", f"{max(seconds / 4, 1):.0f}", "-load_config", str(config)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"Throughput:\s*([\d.]+) FPS", said)
        assert found is not None, said
        rates[i].append(float(found[1]))
    return [median(each) for each in rates]


def missed(name: str, path: Path, objective: str, given: object, folder: Path) -> list[str]:
    """What one model misses; prints what it takes."""
    budget, seconds, gain = (getattr(given, key) for key in ("budget", "seconds", "gain"))
    begin_s = time.monotonic()
    tokens, is_steady = TOKENS.get(name), objective == "throughput"
    result = hsdag.place(path, budget=budget, objective=objective, tokens=tokens)
    found = next((each.setting for each in result.settings if each.device == "CPU"), {})
    bench = Bench(path, tokens, objective, seconds)
    with bench.session:
        default = bench.default()
        capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        every = grid(default, capabilities, steady=is_steady, tokens=tokens is not None)
        first = bench.compared([{}, *every])
        best = first.fastest(list(first.samples))
        last = bench.compared([{}, found, *(each for each in every if text(each) == best)], is_last=True)

    def ratio(versus: str) -> Ratio:
        return last.ratio(text(found), versus) if versus in last.samples else Ratio(1.0, 1.0, 1.0)

    to_best, to_own = ratio(best), ratio(text({}))
    print(
        f"{name}, {objective}: place found {text(found)}: {to_own.value:.3f} times as fast as OpenVINO's own "
        f"({to_own.interval_text}), {to_best.value:.3f} times as fast as the best of {len(every) + 1}, {best} "
        f"({to_best.interval_text}); {1e3 * last.median(text({})):.3f} ms by default"
    )
    print(f"  took {time.monotonic() - begin_s:.0f} s", flush=True)
    lacks = []
    if to_best.value < BAR:
        lacks.append(f"{name}, {objective}: {to_best.value:.3f} of the grid's best")
    if to_own.is_slower:
        lacks.append(f"{name}, {objective}: slower than OpenVINO's own, {to_own.value:.3f}")
    if name == "resnet50" and not is_steady and to_own.value < gain:
        lacks.append(f"{name}: gains {to_own.value:.3f}, and {gain} is expected")
    if is_steady and tokens is None:
        own, tuned = in_benchmark_app(path, [{}, {k: v for k, v in found.items() if k != HINT}], seconds, folder)
        print(f"  benchmark_app -hint throughput: {own:.1f} inferences/s, {tuned:.1f} with what was found", flush=True)
        if found and tuned < OWN_BAR * own:
            lacks.append(f"{name}: {tuned / own:.3f} of benchmark_app -hint throughput")
    return lacks


def main() -> int:
    given = options(
        __doc__,
        ("latency", "throughput"),
        only=(None, "a model"),
        budget=("30s", "of each search"),
        seconds=(
            12.0,
            "for each grid; half of it for the last comparison, and a quarter for each turn of benchmark_app",
        ),
        gain=(0.0, "of resnet50 for latency, over OpenVINO's own setting"),
    )
    lacks: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS if given.only is None else (given.only,):
            path = saved(name, Path(folder))
            for objective in given.parts:
                lacks += missed(name, path, objective, given, Path(folder))
    for each in lacks:
        print(f"missed: {each}")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
