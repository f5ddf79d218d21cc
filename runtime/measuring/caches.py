"""Caches in the user's cache folder: of profiles, and of models that plugins have compiled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from hsdag.base.errors import OutputError
from hsdag.base.files import cache_folder, write_atomically
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.usable import usable_cpus

SCHEMA = 5
"""Part of every key; raise it when the measurements or their meaning change."""


class ProfileCache:
    """A cache of JSON documents, each under a key of all that it depends on; without a folder it keeps nothing.

    A damaged entry counts as missing, and failures to write are ignored: what is in a cache can be measured again.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @staticmethod
    def default() -> ProfileCache:
        """Return the cache of this user."""
        return ProfileCache(cache_folder() / "profiles")

    def get(self, key: Mapping[str, Any], effort_s: float = 0.0) -> dict[str, Any] | None:
        """Return the document under a key, if it is sound and its measurements took ``effort_s`` seconds or more."""
        try:
            stored = json.loads(self._path(key).read_text(encoding="utf-8"))
            return dict(stored["value"]) if stored["key"] == _full(key) and stored["effort_s"] >= effort_s else None
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def put(self, key: Mapping[str, Any], value: Mapping[str, Any], effort_s: float = 0.0) -> None:
        """Store a document under a key, with the seconds that each of its measurements was allowed to take."""
        path = self._path(key)
        with contextlib.suppress(OSError, OutputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"key": _full(key), "effort_s": effort_s, "value": value}).encode())

    def drop(self, key: Mapping[str, Any]) -> None:
        """Delete the document under a key."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: Mapping[str, Any]) -> Path:
        """Return the file of a key; without a folder, a path below a file, where nothing can be stored."""
        digest = hashlib.sha256(json.dumps(_full(key), sort_keys=True).encode()).hexdigest()
        return (self.folder or Path(os.devnull)) / f"{digest[:32]}.json"


def _full(key: Mapping[str, Any]) -> dict[str, Any]:
    full = {**key, "schema": SCHEMA, "openvino": ov.get_version(), "processors": usable_cpus()}
    normal: dict[str, Any] = json.loads(json.dumps(full))
    return normal


def identity(spec: DeviceSpec) -> dict[str, Any]:
    """Return what a device's figures depend on: its hardware by full name, its properties, and torch if it is torch's.

    Torch's devices are "cpu" and "cuda:0"; OpenVINO writes its own in capitals.
    """
    facts: dict[str, Any] = {"plugin": spec.plugin, "properties": dict(sorted(spec.properties.items()))}
    is_cuda = spec.plugin.startswith("cuda")
    if spec.plugin.islower():
        import torch

        facts |= {"torch": torch.__version__, "plugin": spec.plugin if is_cuda else "CPU"}
        if is_cuda:
            return {**facts, "hardware": str(torch.cuda.get_device_name(spec.plugin))}
    return {**facts, "hardware": str(ov.Core().get_property(facts["plugin"], "FULL_DEVICE_NAME"))}


MOST_BYTES = 4 << 30
"""Most bytes of compiled models on disk; beyond it those that were unused for longest are deleted."""


class CompiledModels:
    """OpenVINO's own cache (CACHE_DIR) in a ``folder``, by default the user's, for devices that support it.

    A device with its own CACHE_DIR keeps that. A file that a killed process has left incomplete is compiled again, as
    OpenVINO detects it.
    """

    def __init__(self, core: Any, specs: Sequence[DeviceSpec], folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_folder() / "compiled"
        self._devices = [spec.openvino_name for spec in specs if _is_cached(core, spec)]
        try:
            if self._devices:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._make_room()
        except OSError:  # nobody may write there: nothing is cached
            self._devices = []
        for name in self._devices:
            core.set_property(name, {"CACHE_DIR": str(self._folder)})

    def _make_room(self) -> None:
        """Delete the oldest files beyond MOST_BYTES. Raises OSError where nobody may write."""
        with tempfile.TemporaryFile(dir=self._folder):
            files = [(path.stat(), path) for path in self._folder.iterdir()]
        left_bytes = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
            if left_bytes > MOST_BYTES:
                path.unlink(missing_ok=True)
                left_bytes -= status.st_size

    def properties(self, target: str) -> dict[str, str]:
        """Return properties for ``compile_model`` with a target: HETERO caches the whole model, not its parts."""
        names = target.removeprefix("HETERO:").split(",") if target.startswith("HETERO:") else []
        return {"CACHE_DIR": str(self._folder)} if set(names) & set(self._devices) else {}


def _is_cached(core: Any, spec: DeviceSpec) -> bool:
    if spec.plugin.startswith("CPU") or "CACHE_DIR" in spec.properties:
        return False
    try:
        return "EXPORT_IMPORT" in core.get_property(spec.openvino_name, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError:
        return False
