"""Tuning of devices before a search: races settings to find those with which each device runs the model fastest."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil
from pydantic import TypeAdapter

from hsdag.base.errors import option
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.comparison import FinalComparison
from hsdag.commands.place.limits import too_large
from hsdag.commands.place.records import DeviceSettings, TriedSetting, is_disturbed
from hsdag.commands.place.session import Session
from hsdag.commands.place.verifying import Verifier, check_of
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import DeviceSet, cpu_topology, default_of
from hsdag.runtime.machine.settings import (
    HINT,
    OF_NUMBERS,
    REQUESTS,
    STREAMS,
    THREADS,
    Processors,
    Purpose,
    Setting,
    raises,
    setting_in_words,
    setting_stages,
)
from hsdag.runtime.machine.usable import usable_memory_bytes
from hsdag.runtime.measuring.caches import ProfileCache, identity
from hsdag.runtime.measuring.inferences import requests_in_flight
from hsdag.runtime.measuring.latency import LatencyComparison, Ratio, measure_in_rounds
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import Candidate, ask
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.measuring.settings import LEAST_ROUNDS, PROTOCOL, Tried, race, setting_name
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.search.driver import Watcher
from hsdag.search.options import ANY_PRECISION, PlaceOptions

SHARE = 1 / 6
"""Largest share of the budget for racing settings."""

WARM_UPS = 1
"""Least number of inferences before a setting is raced."""

LEAST_COMPILING_S = 5.0
"""Seconds that a setting may take to compile, however little time is left."""

MEMORY_SHARE = 0.5
"""Largest share of the free memory for settings that are compiled at the same time."""

MOST_TIMES = 20.0
"""Largest factor of the budget to advise for trying settings; more means that the time had run out before."""

BYTES = ("i4", "i8", "nf4", "u4", "u8")
"""Types of weights that OpenVINO may multiply without widening them."""

_KEY = "settings: "
"""Prefix of the keys of candidates in the runner."""

_TRIED = TypeAdapter(tuple[Tried, ...])


@dataclass(frozen=True)
class Tuned:
    """A device whose settings were raced.

    Attributes:
        named: Device as the user named it.
        spec: Device with the best settings.
        default: Values of properties with which a model is compiled for ``named``.
        tried: Settings that were raced.
        is_decided: Whether the race left no doubt; only then is it kept in the cache.
        beside: Rival under which ``named`` takes part in the comparison; None if nothing was changed.
        apart: Relative differences of outputs from the reference's for ``named`` and ``spec``, if the setting changes
            what is computed.
        key: Key of the race in the cache.
    """

    named: DeviceSpec
    spec: DeviceSpec
    default: Mapping[str, str] = field(default_factory=dict)
    tried: tuple[Tried, ...] = ()
    is_decided: bool = True
    beside: DeviceSpec | None = None
    apart: tuple[float, float] | None = None
    key: Mapping[str, Any] | None = None

    @property
    def setting(self) -> Setting:
        """Return the properties that were added to the device."""
        return {key: value for key, value in self.spec.properties.items() if key not in self.named.properties}


def tune(
    session: Session,
    options: PlaceOptions,
    watcher: Watcher,
    fixed: Mapping[str, DeviceSpec],
    wanted: Wanted,
) -> dict[str, Tuned]:
    """Race the settings of all devices, make the session use the best, and return them by device name.

    Partitions that differ only in their number of threads are raced once.

    Args:
        fixed: Devices that keep the settings they have, by name, as the user named them.
        wanted: Collects what there was no time for.
    """
    if session.is_on_torch:
        return {}
    tuned = {
        spec.name: Tuned(fixed[spec.name], spec, beside=_beside(session.devices, spec.name))
        for spec in session.devices.all
        if spec != fixed.get(spec.name, spec)
    }
    end_s = time.monotonic() + SHARE * options.budget_s
    ruled_out = too_large(session, None)
    kinds: dict[str, list[DeviceSpec]] = {}
    for spec in (*session.devices.rivals, *session.devices.placed):
        if spec.name not in ruled_out and spec.name not in fixed:
            alike = {key: value for key, value in spec.properties.items() if key != THREADS}
            kinds.setdefault(str((spec.plugin, spec.is_added, alike)), []).append(spec)
    for number, specs in enumerate(kinds.values()):
        if watcher.should_stop():
            break
        watcher.on_phase(f"trying settings of {specs[0].name}")
        limit_s = (end_s - time.monotonic()) / (len(kinds) - number)
        first = _raced(session, options, watcher, specs[0], limit_s, wanted)
        if first is not None:
            tuned |= {spec.name: _alike(spec, first) for spec in specs}
    devices = tuned_devices(session.devices, tuned)
    if devices != session.devices:
        session.use(devices)
    return tuned


def _beside(devices: DeviceSet, name: str) -> DeviceSpec | None:
    """Return the rival that is the device without its settings, if there is one."""
    return next((spec for spec in devices.rivals if devices.defaults.get(spec.name) == name), None)


def _alike(spec: DeviceSpec, raced: Tuned) -> Tuned:
    """Return a device with the setting that was found for an equal one."""
    best = replace(spec, properties={**spec.properties, **raced.setting})
    beside = default_of(spec, spec.properties) if raced.setting and not spec.is_added else None
    return replace(raced, named=spec, spec=best, beside=beside)


def tuned_devices(devices: DeviceSet, tuned: Mapping[str, Tuned]) -> DeviceSet:
    """Return the devices with the settings that were found; changed ones also become rivals without settings."""
    beside = {n: t.beside for n, t in tuned.items() if t.beside is not None and t.beside not in devices.rivals}
    placed, rivals = (
        tuple(tuned[spec.name].spec if spec.name in tuned else spec for spec in specs)
        for specs in (devices.placed, devices.rivals)
    )
    defaults = {spec.name: name for name, spec in beside.items()}
    return DeviceSet(placed, (*rivals, *beside.values()), {**devices.defaults, **defaults})


def _raced(
    session: Session, options: PlaceOptions, watcher: Watcher, spec: DeviceSpec, limit_s: float, wanted: Wanted
) -> Tuned | None:
    """Return a device with its best setting, from the cache or by a race within ``limit_s``.

    None if the model does not run on it or there was no time.
    """
    lowers = options.precision == ANY_PRECISION
    key = {"kind": "settings", "model": session.digest, "device": identity(spec), "is_part": spec.is_added}
    key |= {"is_steady": options.objective.is_steady, "lowers": lowers, "streams": _has_streams(session, spec)}
    key |= {"most": options.max_difference, "reference": options.reference}
    cache = ProfileCache(None) if options.fresh else ProfileCache.default()
    cached = cache.get(key)
    if cached is not None:
        return replace(_from_record(spec, cached), key=key)
    contest = _Contest(session, options, spec, lowers=lowers)
    try:
        tuned = contest.run(limit_s, watcher)
    except CandidateFailed:
        return None
    finally:
        contest.close()
    if tuned is None:
        watcher.note(f"there was no time to try settings of {spec.name}")
        enough = contest.needed_s / limit_s if limit_s > 0 else math.inf
        wanted.add(f"try settings of {spec.name}", options.budget_s * enough if enough < MOST_TIMES else None)
        return None
    if tuned.is_decided:
        cache.put(key, _record(tuned))
    else:
        wanted.add(f"decide about settings of {spec.name}")
    return replace(tuned, key=key)


class _Contest:
    """Race of the settings of one device in the session's worker."""

    def __init__(self, session: Session, options: PlaceOptions, spec: DeviceSpec, *, lowers: bool) -> None:
        self.spec = spec
        self._session = session
        self._check = check_of(session, options)
        if lowers and not self._check.reduced:
            self._check = replace(self._check, reduced="a lower precision")
        objective = THROUGHPUT if options.objective.is_steady else LATENCY
        self._runner = CandidateRunner(session.client, objective, session.runner.limits, session.scenarios)
        graph = session.graph
        self._purpose = Purpose(
            is_steady=options.objective.is_steady,
            lowers=lowers,
            has_state=any(graph.variables),
            is_compressed=bool(np.isin(graph.element_types, BYTES)[graph.weight_bytes > 0].any()),
            is_part=spec.is_added,
            has_streams=_has_streams(session, spec),
        )
        self._verifier = Verifier(self._runner, self._check)
        self._rng = np.random.default_rng(options.seed)
        self._default: Mapping[str, str] = {}
        self.needed_s = 0.0  # seconds that the race needs at least
        self._was_late = False  # whether a setting took too long to compile

    def run(self, limit_s: float, watcher: Watcher) -> Tuned | None:
        """Race settings for at most ``limit_s``, and return the device with the best; None if that is too short.

        Raises CandidateFailed if the model does not run on the device.
        """
        begin_s = time.monotonic()
        first = _KEY + setting_name({})
        opened = self._runner.open(first, Candidate(self.spec.openvino_name))
        offer = self._session.client.call(
            ask(OpenVinoMeasurer.offer, first, self.spec.openvino_name), self._runner.limits.run_s
        )
        self._default = offer.default
        stages = setting_stages(self.spec, offer, self._purpose, _processors())
        model_bytes = 2 * (float(self._session.graph.weight_bytes.sum()) + 1.0)  # weights may be repacked
        num_open = int(MEMORY_SHARE * usable_memory_bytes() / model_bytes)
        stages = tuple(stage[: num_open - 1] for stage in stages if num_open > 1)
        if not stages:
            return Tuned(self.spec, self.spec, offer.default)
        ran_s = time.monotonic()
        self._runner.run(first, 1)
        run_s = time.monotonic() - ran_s
        left_s = limit_s - (time.monotonic() - begin_s)
        least_s = opened.compile_s + 2 * (WARM_UPS + 2 * LEAST_ROUNDS) * run_s
        self.needed_s = time.monotonic() - begin_s + least_s
        if least_s > left_s:
            return None
        most_s = max(left_s, LEAST_COMPILING_S)
        self._runner.limits, self._runner.compiling_s = replace(self._runner.limits, compile_s=most_s), 0.0

        def compare_settings(settings: Mapping[str, Setting], seconds: float) -> LatencyComparison:
            if watcher.should_stop():
                return LatencyComparison({}, {})
            protocol = replace(PROTOCOL, limit_s=seconds)
            round_s = 2 * len(settings) * run_s
            if protocol.min_rounds * round_s > seconds:
                protocol = replace(protocol, min_rounds=LEAST_ROUNDS)
            try:
                return measure_in_rounds(
                    lambda name, runs: self._runner.run(_KEY + name, runs),
                    list(settings),
                    list(settings),
                    protocol,
                    self._rng,
                    prepare=lambda name: self._open(name, settings[name]),
                    num_sure=2,
                    should_stop=watcher.should_stop,
                )
            finally:
                self.close()

        raced = race(stages, compare_settings, left_s, time.monotonic, least_s=least_s)
        best = replace(self.spec, properties={**self.spec.properties, **raced.setting})
        apart = self._apart(raced.setting) if OF_NUMBERS & raced.setting.keys() else None
        is_decided = raced.is_decided and not self._was_late
        return Tuned(self.spec, best, offer.default, raced.tried, is_decided, apart=apart)

    def _apart(self, setting: Setting) -> tuple[float, float] | None:
        """Return the relative differences of outputs from the reference's without and with a setting, if known."""
        differences: list[float] = []
        for properties in ({}, setting):
            key = _KEY + setting_name(properties)
            with suppress(CandidateFailed):
                self._runner.open(key, Candidate(self.spec.openvino_name, properties=properties))
                relative = self._verifier.difference(key)["max_relative"]
                differences += [] if relative is None else [relative]
        return (differences[0], differences[1]) if len(differences) == 2 else None

    def _open(self, name: str, setting: Setting) -> None:
        """Compile a setting. Raises CandidateFailed if it does not compile, or its outputs differ too much."""
        key = _KEY + name
        if key not in self._runner.candidates:
            try:
                self._runner.open(key, Candidate(self.spec.openvino_name, properties=setting))
            except CandidateFailed as failure:
                self._was_late |= failure.is_late
                raise
        if self._check.is_limit or not raises(setting, self._default):
            reason = self._verifier.compared(key, is_split=False).reason
            if reason is not None:
                raise CandidateFailed(reason)

    def close(self) -> None:
        """Close all candidates."""
        self._verifier.close()
        for key in list(self._runner.candidates):
            self._runner.close(key)


def _has_streams(session: Session, spec: DeviceSpec) -> bool:
    """Return whether a device only ever runs whole models, so that it may have several streams."""
    return spec in session.devices.rivals or len(session.devices.placed) == 1


def _processors() -> Processors:
    topology = cpu_topology()
    physical = psutil.cpu_count(logical=False) or topology.threads
    return Processors(topology.threads, min(physical, topology.threads), is_hybrid=topology.efficiency > 0)


def _record(tuned: Tuned) -> dict[str, Any]:
    record = {"default": dict(tuned.default), "is_decided": tuned.is_decided, "apart": tuned.apart}
    return {**record, "setting": tuned.setting, "tried": _TRIED.dump_python(tuned.tried)}


def _from_record(spec: DeviceSpec, record: Mapping[str, Any]) -> Tuned:
    tried = _TRIED.validate_python(record["tried"])
    best = replace(spec, properties={**spec.properties, **record["setting"]})
    apart = record["apart"] and tuple(record["apart"])
    return Tuned(spec, best, record["default"], tried, record["is_decided"], apart=apart)


def forget_beaten(tuned: Mapping[str, Tuned], final: FinalComparison) -> None:
    """Drop settings from the cache if the answer is their device without them."""
    for raced in tuned.values():
        if raced.key is not None and raced.beside is not None and raced.beside.name == final.answer:
            ProfileCache.default().drop(raced.key)


def settings_record(tuned: Tuned, final: FinalComparison) -> DeviceSettings:
    """Return the record of a device's settings; none is chosen if the answer is the device without them."""
    name, beside, default = tuned.spec.name, tuned.beside, tuned.default
    fields: dict[str, Any] = {}
    setting = {} if beside is not None and beside.name == final.answer else tuned.setting
    if setting:
        fields = {"setting": setting, "words": setting_in_words(setting, default), "apart": tuned.apart}
    if default.get(HINT) == "THROUGHPUT" and REQUESTS in default:
        fields["requests"] = requests_in_flight(int(setting.get(STREAMS, default[REQUESTS])))
    if setting and beside is not None and {beside.name, name} <= final.comparison.samples.keys():
        over = final.comparison.ratio(name, beside.name)
        if not is_disturbed(over, final.others):
            fields |= _in_record(over)
    tried = tuple(
        TriedSetting(setting=each.setting, failure=each.failure, **_in_record(each.ratio)) for each in tuned.tried
    )
    return DeviceSettings(device=name, default=dict(default), tried=tried, is_decided=tuned.is_decided, **fields)


def _in_record(ratio: Ratio | None) -> dict[str, Any]:
    return {} if ratio is None else {"ratio": ratio.value, "ci95": tuple(ratio.interval)}


def settings_sentence(settings: Sequence[DeviceSettings], used: Collection[str]) -> str:
    """Return sentences on what the settings of the ``used`` devices change and gain; empty if none was changed."""
    alike: dict[str, list[DeviceSettings]] = {}
    for chosen in settings:
        if chosen.device in used and chosen.setting:
            alike.setdefault(chosen.words, []).append(chosen)
    return " ".join(_said(words, of_devices) for words, of_devices in alike.items())


def _said(words: str, settings: Sequence[DeviceSettings]) -> str:
    names, first = " and ".join(each.device for each in settings), settings[0]
    nearer = first.model_copy(update={"ratio": None}).gain
    if first.ratio is None:
        return f"{names} {'is' if len(settings) == 1 else 'are'} used {words}{f', {nearer}' if nearer else ''}."
    low, high = (None if end is None else f"{100 * (end - 1):.1f}%" for end in first.ci95)
    interval = "" if low is None else f" (95% interval {low} to {high})"
    faster = f"{100 * (first.ratio - 1):.1f}% faster{interval} than as OpenVINO sets it up"
    return f"{names} {words} is {faster}{f', and {nearer}' if nearer else ''}."


def one_device_sentence(settings: DeviceSettings | None, device: str, more: str) -> str:
    """Return what settings gain on the only device; ``more`` says how to name further devices."""
    hint = f"to gain more, name a second device with {option('devices')}{more}"
    if settings is not None and settings.setting:
        return f"{settings_sentence([settings], [device])} It is the only device to place on; {hint}."
    if settings is None or not settings.tried:
        return f"{device} is the only device to place on, and no settings of it were tried; {hint}."
    if not settings.is_decided:
        doubt = "not decided: repeat it with more time, or with nothing else running"
        return f"Whether {device} is faster with other settings is {doubt}; {hint}."
    num = len(settings.tried)
    tried = "the other setting that was" if num == 1 else f"any of {num} other settings that were"
    return f"{device} is not faster with {tried} tried; {hint}."
