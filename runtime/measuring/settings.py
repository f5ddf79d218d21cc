"""The race for the settings of a device: stage by stage, in short common rounds in which losers soon drop out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hsdag.runtime.machine.settings import Setting
from hsdag.runtime.measuring.latency import Clock, LatencyComparison, Protocol, Ratio

WORTH = 1.01
"""Speed relative to the best so far below which a setting is not worth deviating from the default."""

LEAST_ROUNDS = 3
"""Number of rounds below which no setting is preferred, however clear they seem."""

PROTOCOL = Protocol(turn_s=0.05, hopeless=0.95)
"""Protocol of a race: a setting drops out after three rounds in which it was at most 0.95 times as fast as the best."""

OPEN = 1.05
"""Speed relative to the best so far: a setting that could be faster than this, and was not preferred, is undecided."""

CompareSettings = Callable[[Mapping[str, Setting], float], LatencyComparison]
"""Function that measures settings by name, the incumbent first, within a number of seconds."""


@dataclass(frozen=True)
class Tried:
    """A setting that was raced, on top of earlier winners: its speed relative to these, or why it failed."""

    setting: Setting
    ratio: Ratio | None
    failure: str | None = None

    @property
    def is_decided(self) -> bool:
        """Return whether it is known to be faster, or not to be much faster."""
        return self.ratio is None or is_preferred(self.ratio) or self.ratio.high < OPEN


@dataclass(frozen=True)
class Raced:
    """The result of a race: the best setting, empty for the default, and all that were tried.

    It is decided if all had a turn and none is in doubt.
    """

    setting: Setting
    tried: tuple[Tried, ...]
    is_decided: bool


def race(
    stages: Sequence[Sequence[Setting]],
    compare_settings: CompareSettings,
    limit_s: float,
    clock: Clock = time.perf_counter,
    *,
    least_s: float = 0.0,
) -> Raced:
    """Find the fastest setting within ``limit_s`` seconds.

    The stages share what is left of them equally, ``least_s`` seconds at least each; stages without time are not raced.
    A setting replaces the incumbent, at first the default, if its interval lies above 1; the intervals of a stage
    hold together.
    """
    begin_s = clock()
    best: Setting = {}
    tried: list[Tried] = []
    for number, stage in enumerate(stages):
        left_s = limit_s - (clock() - begin_s)
        if left_s <= least_s:
            return Raced(best, tuple(tried), is_decided=False)
        names = {setting_name(setting): setting for setting in stage}
        settings = {setting_name(best): best, **{name: {**best, **setting} for name, setting in names.items()}}
        comparison = compare_settings(settings, max(left_s / (len(stages) - number), least_s))
        winner, of_stage = winner_of(comparison, setting_name(best), names)
        tried += of_stage
        best = settings[winner]
    is_decided = len(tried) == sum(map(len, stages)) and all(each.is_decided for each in tried)
    return Raced(best, tuple(tried), is_decided)


def setting_name(setting: Mapping[str, str]) -> str:
    """Return a setting as a name."""
    return ";".join(f"{key}={value}" for key, value in setting.items()) or "default"


def winner_of(
    comparison: LatencyComparison, incumbent: str, others: Mapping[str, Setting]
) -> tuple[str, tuple[Tried, ...]]:
    """Return the name of the setting to go on with, the incumbent unless another is faster, and what was tried.

    If the incumbent failed, it is the fastest of the others, or still the incumbent if all failed.
    """
    ran = [name for name in others if name in comparison.samples]
    if incumbent not in comparison.samples:
        failed = tuple(Tried(others[n], None, why) for n, why in comparison.failures.items() if n in others)
        return (comparison.fastest(ran) if ran else incumbent), (*failed, *(Tried(others[n], None) for n in ran))
    ratios = {name: comparison.ratio(name, incumbent, len(ran)) for name in ran}
    tried = [Tried(others[name], ratio) for name, ratio in ratios.items()]
    tried += [Tried(others[name], None, why) for name, why in comparison.failures.items() if name in others]
    faster = [name for name, ratio in ratios.items() if is_preferred(ratio)]
    return max(faster, key=lambda name: ratios[name].value, default=incumbent), tuple(tried)


def is_preferred(ratio: Ratio) -> bool:
    """Return whether a setting with this ratio replaces the incumbent."""
    return ratio.num_rounds >= LEAST_ROUNDS and ratio.low > 1.0 and ratio.value >= WORTH
