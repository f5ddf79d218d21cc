"""Lines of a result for people: what to run, how to use it, the memory it takes, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsdag.base.host import command_line
from hsdag.commands.place.records import DeviceSettings, Row, ScenarioRecord, is_disturbed
from hsdag.drawing import in_bytes
from hsdag.ir.device import ADDED_DEFAULTS, DeviceSpec
from hsdag.ir.graph.scenario import context_of, token_words
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.machine.settings import in_benchmark_app
from hsdag.runtime.objectives import LATENCY, Objective

RUNNERS = {"hetero": "by HETERO", "work-conserving": "by hsdag's executor", "cuda": "by the torch engine"}
"""Words for each executor."""

MORE_CONTEXT = (4096, 32768)
"""Lengths of context in tokens for which memory is shown, if they are longer than the scenarios'."""


@dataclass(frozen=True)
class Deployed:
    """The answer as it is deployed.

    Attributes:
        row: Row of the answer in the comparison.
        settings: Settings of devices that were raced before the search.
    """

    row: Row
    placement: Placement
    settings: Sequence[DeviceSettings]

    @property
    def alone(self) -> str | None:
        """Return the device that runs the whole model, by its name without settings' suffix; None for a split."""
        placement, used = self.placement, self.placement.used_devices
        return used[0] if len(used) == 1 and not placement.shards and not placement.copies else None

    @property
    def chosen(self) -> list[DeviceSettings]:
        """Return the settings of the device that runs the whole model, if some were chosen."""
        return [each for each in self.settings if each.device == self.alone and each.setting]

    def device(self, name: str) -> DeviceSpec | None:
        """Return the device of this name in the placement; None if it has none."""
        return next((spec for spec in self.placement.devices if spec.name == name), None)

    @property
    def what(self) -> str:
        """Return what to run, in words."""
        name, placement, row = self.row.name, self.placement, self.row
        over = [device for device, count in row.ops.items() if count]
        if placement.shards:
            what = f"{name}, {len(placement.shards)} regions divided over {' and '.join(over)}"
        elif len(over) > 1:
            ops = " and ".join(f"{row.ops[device]} ops on {device}" for device in over)
            what = f"{name}, {ops}, {RUNNERS[placement.executor]}"
        else:
            what = f"the whole model on {self._described(self.alone or name)}"
        alike = "".join(f", {words}" for words in _alike(self.settings, over)) if self.alone is None else ""
        return f"{what}{alike}"

    def _described(self, name: str) -> str:
        """Return a device's name, with its plugin and properties if OpenVINO does not know the name."""
        spec = self.device(name)
        if self.chosen and name == self.alone:
            return f"{name} {self.chosen[0].words}"
        if spec is None or not (spec.properties or spec.is_added):
            return name
        implied = ADDED_DEFAULTS.get(spec.plugin, {}).items()
        said = [f"{key}={value}" for key, value in sorted(spec.properties.items() - implied)]
        return f"{name} ({spec.plugin}{' with ' if said else ''}{', '.join(said)})"


def run_sentence(
    answer: Deployed, objective: Objective, versus: str | None, others: float, scenarios: Sequence[ScenarioRecord]
) -> str:
    """Return what to run, the time it takes, and how much faster that is than the best single device.

    Args:
        versus: Best single device; None if no single device runs the model.
        others: Share of the processors that other programs took during the comparison.
    """
    row = answer.row
    gain = "".join(f", {each.gain}" for each in answer.chosen if each.gain)
    is_faster = row.over.is_faster and not is_disturbed(row.over, others)
    if versus is not None and row.name != versus and is_faster:
        good = "fast" if objective.unit == "s" else "good"
        gain = f", {row.ratio:.2f} times as {good} as the best single device, {versus}"
    return f"Run {answer.what}: {_figures(row, objective, scenarios)}{gain}."


def setting_sentence(answer: Deployed, model_path: str | None, placement_file: str | None) -> str:
    """Return the line of Python that compiles the answer, in a sentence; empty if there is none."""
    model, executor = model_path or "model.xml", answer.placement.executor
    spec = answer.device(answer.alone or answer.row.name)
    if spec is not None and executor != "cuda":
        how = f", {spec.properties}" if spec.properties else ""
        requests = next((each.requests for each in answer.settings if each.device == spec.name), None)
        busy = "" if requests is None else f", with {requests} requests in flight"
        other = f"; elsewhere: {in_benchmark_app(spec.plugin, spec.properties, requests)}" if answer.chosen else ""
        return f"To use it in Python: ov.Core().compile_model({model!r}, {spec.plugin!r}{how}){busy}{other}"
    if placement_file is None or executor == "cuda":
        return ""
    return f"To use it in Python: hsdag.compile_model({model!r}, {placement_file!r})"


def memory_sentence(
    weight_bytes: Mapping[str, float], state_bytes_per_token: Mapping[str, float], scenarios: Sequence[ScenarioRecord]
) -> str:
    """Return the memory of each device for a language model, by context; empty for other models."""
    contexts = sorted({context_of(each.tokens) for each in scenarios if each.tokens})
    if not state_bytes_per_token or not weight_bytes or not contexts:
        return ""
    said = []
    for name, size in weight_bytes.items():
        if not size:
            continue
        token = state_bytes_per_token.get(name, 0.0)
        fixed = size - token * contexts[-1]
        lengths = [contexts[-1], *(n for n in MORE_CONTEXT if n > contexts[-1])]
        at = ", ".join(f"{in_bytes(fixed + token * n)} at {n}" for n in lengths)
        said.append(f"{name} {in_bytes(fixed)} and {in_bytes(token)} a token ({at})")
    return f"Memory for weights and state, by tokens of context: {'; '.join(said)}."


def next_command(
    placement: Placement, model_path: str | None, placement_file: str | None, run_folder: Path | None
) -> str | None:
    """Return the command to run next: ``hsdag bench`` for a split, or else ``hsdag explain``.

    None if neither can be run.
    """
    if len(placement.used_devices) > 1 and model_path is not None and placement_file is not None:
        return command_line(["hsdag", "bench", model_path, "--placement", placement_file])
    return None if run_folder is None else command_line(["hsdag", "explain", str(run_folder)])


def _alike(settings: Sequence[DeviceSettings], devices: Sequence[str]) -> list[str]:
    """Return the setting in words if it is the same for all of the devices, else nothing."""
    words = {each.device: each.words for each in settings if each.device in devices and each.setting}
    return [*set(words.values())] if len(words) == len(devices) and len(set(words.values())) == 1 else []


def _figures(row: Row, objective: Objective, scenarios: Sequence[ScenarioRecord]) -> str:
    """Return the value of a row, or for a language model the time of each scenario."""
    if row.scenario_medians_s and all(each.tokens for each in scenarios):
        return ", ".join(map(_token_figures, scenarios, row.scenario_medians_s))
    rate = f", {1 / row.median:.4g} inferences a second" if objective is LATENCY else ""
    return f"{objective.text(row.median)}{rate}"


def _token_figures(scenario: ScenarioRecord, seconds: float) -> str:
    """Return the time of a scenario of a language model, with tokens a second if it is one generated token."""
    words, count = token_words(scenario.tokens or "")
    rate = f" ({1 / seconds:.4g} tokens a second)" if count == 1 else ""
    return f"{words} in {1e3 * seconds:.4g} ms{rate}"
