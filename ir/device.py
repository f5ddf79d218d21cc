"""Devices by name: OpenVINO's own, and further ones that register an OpenVINO plugin again with other properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, ParamSpec, TypeVar

from pydantic import ConfigDict, Field

from hsdag.base.errors import DeviceError, last_line, option

P = ParamSpec("P")
R = TypeVar("R")


def loads_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in a new thread, for functions after which OpenVINO plugins stay loaded.

    On Linux, a CPU plugin gives the thread that loads it an alternate signal stack. When the plugin is unloaded, it
    frees that stack, and restores the thread's former one only if its own is still in use (2026.4.1). If the plugins of
    two cores, or of two devices of one core, are unloaded in any order but the reverse, the thread is left with a freed
    stack, and the next Ctrl-C ends the process with a segmentation fault. A thread that ends once the plugins are
    loaded takes its signal stack with it.
    """

    @wraps(function)
    def in_its_own_thread(*args: P.args, **kwargs: P.kwargs) -> R:
        with ThreadPoolExecutor(1, "hsdag-plugins") as thread:
            return thread.submit(function, *args, **kwargs).result()

    return in_its_own_thread


PLUGIN_LIBRARIES = {
    "CPU": "openvino_intel_cpu_plugin",
    "GPU": "openvino_intel_gpu_plugin",
    "NPU": "openvino_intel_npu_plugin",
}
"""Library of each plugin over which devices can be added."""

ADDED_DEFAULTS: dict[str, dict[str, str]] = {
    "CPU": {"ENABLE_CPU_PINNING": "NO", "EXCLUSIVE_ASYNC_REQUESTS": "NO"},
}
"""Properties that an added device gets unless its own say otherwise. Without them two CPU devices are not independent:
pinned ones share core 0, and with exclusive asynchronous requests the CPU plugin ignores its number of threads as soon
as HETERO makes two submodels.
"""

_WITH_PROPERTIES = re.compile(r"(?:([A-Za-z]\w*)=)?([A-Za-z]\w*(?:\.\d+)?)(?:\[([^\[\]]*)\])?")
_NATIVE = re.compile(r"[A-Za-z]\w*(?:\.\d+)?")


@dataclass(frozen=True)
class DeviceSpec:
    """A device by name.

    ``plugin`` is the OpenVINO device it runs on (``CPU``, ``GPU.1``). A device with the same name and plugin is
    OpenVINO's own; any other is added by registering the plugin's library again under another name.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # files may have no other fields

    name: Annotated[str, Field(min_length=1)]
    plugin: Annotated[str, Field(min_length=1)]
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def is_added(self) -> bool:
        """Return whether the device has to be registered before use."""
        return self.name != self.plugin

    @property
    def openvino_name(self) -> str:
        """Return the name by which OpenVINO knows the device.

        OpenVINO loads a plugin only under a name that contains the plugin's own, so a device FAST over CPU
        is CPU_FAST there; CPU_0 stays CPU_0.
        """
        if not self.is_added:
            return self.name
        base, _, device_id = self.plugin.partition(".")
        registered = self.name if base in self.name else f"{base}_{self.name}"
        return f"{registered}.{device_id}" if device_id else registered

    @property
    def library_name(self) -> str:
        """Return the name of the plugin's library. Raises DeviceError if no device can be added over the plugin."""
        name = PLUGIN_LIBRARIES.get(self.plugin.partition(".")[0])
        if name is None:
            why = f"no device can be added over {self.plugin!r}; plugins are {', '.join(PLUGIN_LIBRARIES)}"
            raise DeviceError(f"device {self.name!r}: {why}")
        return name

    @staticmethod
    def parse(text: str) -> DeviceSpec:
        """Return the device of a text: ``GPU.1``, ``GPU.1[KEY=VALUE;...]`` or ``NAME=PLUGIN[KEY=VALUE;...]``.

        Raises DeviceError for other forms.
        """
        text = text.strip()
        if _NATIVE.fullmatch(text):
            return DeviceSpec(text, text)
        match = _WITH_PROPERTIES.fullmatch(text)
        if match is None:
            forms = "GPU.0[KEY=VALUE;...] nor NAME=PLUGIN[KEY=VALUE;...]"
            raise DeviceError(f"device {text!r} is neither a name such as GPU.0, nor {forms}")
        name, plugin, body = match[1] or match[2], match[2], match[3] or ""
        defaults = ADDED_DEFAULTS.get(plugin.partition(".")[0], {})
        spec = DeviceSpec(name, plugin, {**defaults, **parse_properties(name, body)})
        spec.library_name  # noqa: B018 - which raises
        return spec

    @loads_plugins
    def register(self, core: Any) -> None:
        """Make the device known to an ``ov.Core`` under ``openvino_name`` and load its plugin.

        If the core has the added device already, it gets this spec's properties, and the plugin's defaults for others.
        Raises DeviceError when the device is absent, fails to load or refuses a property.
        """
        loaded_name = self.openvino_name.partition(".")[0]
        try:
            if self.is_added and loaded_name in {str(name).partition(".")[0] for name in core.available_devices}:
                _reset_properties(core, loaded_name, self)
            elif self.is_added:
                with suppress(RuntimeError):  # the plugin is registered already, and its device is absent
                    core.register_plugin(plugin_library(self.library_name), loaded_name)
            if self.properties:
                core.set_property(loaded_name if self.is_added else self.name, dict(self.properties))
            core.get_property(self.openvino_name, "FULL_DEVICE_NAME")
        except RuntimeError as error:
            raise DeviceError(f"device {self.name!r} ({self.plugin}) fails to load: {last_line(error)}") from error


@dataclass(frozen=True, eq=False)
class DeviceIndex:
    """Devices in an order: a device is known by its position here, by its name, and by OpenVINO's name.

    >>> index = DeviceIndex.of([DeviceSpec("GPU", "GPU"), DeviceSpec("FAST", "CPU")])
    >>> index.openvino_named(index.positions(["FAST", "GPU", "FAST"]))
    ['CPU_FAST', 'GPU', 'CPU_FAST']
    """

    specs: tuple[DeviceSpec, ...]

    @staticmethod
    def of(specs: Iterable[DeviceSpec]) -> DeviceIndex:
        """Return the index of devices in their order."""
        return DeviceIndex(tuple(specs))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the devices."""
        return tuple(spec.name for spec in self.specs)

    @cached_property
    def openvino_names(self) -> tuple[str, ...]:
        """Return OpenVINO's names of the devices."""
        return tuple(spec.openvino_name for spec in self.specs)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: d for d, name in enumerate(self.names)}

    @cached_property
    def _openvino_position(self) -> dict[str, int]:
        return {name: d for d, name in enumerate(self.openvino_names)}

    def positions(self, names: Iterable[str]) -> list[int]:
        """Return the position of each device by its name. Raises KeyError for a name that no device has."""
        return [self._position[name] for name in names]

    def openvino_positions(self, names: Iterable[str]) -> list[int]:
        """Return the position of each device by OpenVINO's name; -1 for a name that no device has."""
        return [self._openvino_position.get(name, -1) for name in names]

    def named(self, positions: Iterable[int]) -> list[str]:
        """Return the name of the device at each position."""
        return [self.names[d] for d in positions]

    def openvino_named(self, positions: Iterable[int]) -> list[str]:
        """Return OpenVINO's name of the device at each position."""
        return [self.openvino_names[d] for d in positions]


def plugin_library(name: str) -> str:
    """Return the path of a plugin's library beside OpenVINO's other libraries, or its bare name if it is not there.

    OpenVINO looks for a bare name in the current folder first. Raises DeviceError where it would find one there.
    """
    import openvino as ov  # imported late: simulators read placements too

    path = next(Path(ov.__file__).parent.glob(f"libs/*{name}.*"), None)
    if path is None and any(Path().glob(f"*{name}.*")):  # this OpenVINO has its libraries outside its package
        raise DeviceError(f"OpenVINO would load {name} from the current folder; run hsdag in another folder")
    return name if path is None else str(path)


def parse_properties(name: str, text: str) -> dict[str, str]:
    """Return the properties in ``KEY=VALUE;...``. Raises DeviceError, which names device ``name``, for other forms."""
    properties = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        key, _, value = (part.strip() for part in item.partition("="))
        if not key or not value:
            raise DeviceError(f"device {name!r}: property {item!r} is not of the form KEY=VALUE")
        properties[key] = value
    return properties


def split_devices(text: str) -> list[str]:
    """Return the items of a comma-separated list of devices; commas in brackets do not separate."""
    return [item.strip() for item in re.split(r",(?![^\[]*\])", text) if item.strip()]


def parse_devices(text: str, parse: Callable[[str], DeviceSpec] = DeviceSpec.parse) -> tuple[DeviceSpec, ...]:
    """Return the devices of a comma-separated list. Raises DeviceError when one occurs twice or there is none."""
    specs = tuple(parse(item) for item in split_devices(text))
    if not specs:
        raise DeviceError(f"no device given; name at least one, for example {option('devices')} CPU,GPU")
    if any(len(set(names)) < len(specs) for names in zip(*((s.name, s.openvino_name) for s in specs), strict=True)):
        raise DeviceError(f"a device occurs twice in {text!r}")
    return specs


def hetero_properties(specs: Iterable[DeviceSpec], properties: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the properties to give ``compile_model`` with a HETERO target, so that each device keeps its own.

    HETERO sets EXCLUSIVE_ASYNC_REQUESTS on every submodel it makes, over what was set on the device; only
    DEVICE_PROPERTIES given at compilation win. ``properties`` are the caller's: all of them are kept, and their
    DEVICE_PROPERTIES replace those of a device key by key.
    """
    merged = {spec.openvino_name: dict(spec.properties) for spec in specs if spec.properties}
    rest = dict(properties or {})
    for name, replacements in rest.pop("DEVICE_PROPERTIES", {}).items():
        merged[name] = {**merged.get(name, {}), **replacements}
    return {**rest, "DEVICE_PROPERTIES": merged} if merged else rest


@cache
def _settable(plugin: str) -> tuple[str, ...]:
    """Return the names of the properties of a plugin that can be set; cached, as OpenVINO never frees its answers."""
    import openvino as ov  # imported late: simulators read placements too

    properties = ov.Core().get_property(plugin, "SUPPORTED_PROPERTIES").items()
    return tuple(str(key) for key, access in properties if access == "RW")


def _reset_properties(core: Any, loaded_name: str, spec: DeviceSpec) -> None:
    """Reset the properties that ``spec`` does not name to the values they have in a new core.

    The new core gets the properties of ``spec`` as well, because some of them change the values of others.
    """
    import openvino as ov

    default = ov.Core()
    if spec.properties:
        default.set_property(spec.plugin, dict(spec.properties))
    for key in _settable(spec.plugin):
        if key not in spec.properties:
            value = default.get_property(spec.plugin, key)
            if core.get_property(spec.openvino_name, key) != value:
                core.set_property(loaded_name, {key: value})
