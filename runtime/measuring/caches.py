"""What is kept in the user's cache folder: profiles, and what plugins have compiled; nothing is done twice here."""

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

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OutputError
from hsdag.ir.files import cache_folder, write_atomically
from hsdag.runtime.machine.usable import usable_cpus

SCHEMA = 5
"""Part of every key: raise it when the measurements or their meaning change."""


class ProfileCache:
    """JSON documents by a key that names all that they depend on. A folder of None keeps nothing.

    A damaged entry counts as none, and a folder that cannot be written to costs the entry only: what is in a
    cache can be measured again.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @staticmethod
    def default() -> ProfileCache:
        """The one of this user."""
        return ProfileCache(cache_folder() / "profiles")

    def get(self, key: Mapping[str, Any], effort_s: float = 0.0) -> dict[str, Any] | None:
        """The document under a key, if there is a sound one that at least ``effort_s`` seconds were spent on."""
        try:
            stored = json.loads(self._path(key).read_text(encoding="utf-8"))
            return dict(stored["value"]) if stored["key"] == _full(key) and stored["effort_s"] >= effort_s else None
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def put(self, key: Mapping[str, Any], value: Mapping[str, Any], effort_s: float = 0.0) -> None:
        """Keep a document under a key, with the seconds that were allowed for each of its measurements."""
        path = self._path(key)
        with contextlib.suppress(OSError, OutputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"key": _full(key), "effort_s": effort_s, "value": value}).encode())

    def drop(self, key: Mapping[str, Any]) -> None:
        """Forget what is under a key."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: Mapping[str, Any]) -> Path:
        """Below a file, where nothing can be kept, without a folder."""
        digest = hashlib.sha256(json.dumps(_full(key), sort_keys=True).encode()).hexdigest()
        return (self.folder or Path(os.devnull)) / f"{digest[:32]}.json"


def _full(key: Mapping[str, Any]) -> dict[str, Any]:
    full = {**key, "schema": SCHEMA, "openvino": ov.get_version(), "processors": usable_cpus()}
    normal: dict[str, Any] = json.loads(json.dumps(full))
    return normal


def identity(spec: DeviceSpec) -> dict[str, Any]:
    """What a device's figures depend on: the hardware by its full name, the properties, and torch where it is torch's.

    Torch's devices are "cpu" and "cuda:0"; OpenVINO writes its own in capitals.
    """
    own: dict[str, Any] = {"plugin": spec.plugin, "properties": dict(sorted(spec.properties.items()))}
    is_cuda = spec.plugin.startswith("cuda")
    if spec.plugin.islower():
        import torch

        own |= {"torch": torch.__version__, "plugin": spec.plugin if is_cuda else "CPU"}
        if is_cuda:
            return {**own, "hardware": str(torch.cuda.get_device_name(spec.plugin))}
    return {**own, "hardware": str(ov.Core().get_property(own["plugin"], "FULL_DEVICE_NAME"))}


MOST_BYTES = 4 << 30
"""What compiled models may take; the ones that were not used for longest are deleted first."""


class CompiledModels:
    """OpenVINO's own cache (CACHE_DIR) in a ``folder``, by default the user's, for those devices that can have one.

    A device with a CACHE_DIR of its own keeps that. What a killed process has written half is compiled again: OpenVINO
    sees that it is not whole.
    """

    def __init__(self, core: Any, specs: Sequence[DeviceSpec], folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_folder() / "compiled"
        self._devices = [spec.openvino_name for spec in specs if _is_cached(core, spec)]
        try:
            if self._devices:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._make_room()
        except OSError:  # nobody may write there: nothing is kept
            self._devices = []
        for name in self._devices:
            core.set_property(name, {"CACHE_DIR": str(self._folder)})

    def _make_room(self) -> None:
        """Delete the oldest files beyond MOST_BYTES. Raises OSError where nobody may write."""
        with tempfile.TemporaryFile(dir=self._folder):
            files = [(path.stat(), path) for path in self._folder.iterdir()]
        left_bytes = sum(found.st_size for found, _ in files)
        for found, path in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
            if left_bytes > MOST_BYTES:
                path.unlink(missing_ok=True)
                left_bytes -= found.st_size

    def properties(self, target: str) -> dict[str, str]:
        """What ``compile_model`` needs beside a target: HETERO does not keep parts of a model, but the whole."""
        names = target.removeprefix("HETERO:").split(",") if target.startswith("HETERO:") else []
        return {"CACHE_DIR": str(self._folder)} if set(names) & set(self._devices) else {}


def _is_cached(core: Any, spec: DeviceSpec) -> bool:
    if spec.plugin.startswith("CPU") or "CACHE_DIR" in spec.properties:
        return False
    try:
        return "EXPORT_IMPORT" in core.get_property(spec.openvino_name, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError:
        return False
