"""What is kept in the user's cache folder: profiles, and what plugins have compiled; nothing is done twice here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov
import platformdirs
import psutil

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OutputError
from hsdag.ir.files import write_atomically
from hsdag.runtime.machine.usable import usable_cpus

SCHEMA = 4
"""Part of every key: raise it when the measurements or their meaning change."""

CACHE_VARIABLE = "HSDAG_CACHE_DIR"


def cache_folder() -> Path:
    """What HSDAG_CACHE_DIR names, or else the folder for hsdag in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("hsdag"))


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
        path = self._path(key)
        if path is None:
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("key") != _full(key) or stored.get("effort_s", 0.0) < effort_s:
            return None
        value = stored.get("value")
        return value if isinstance(value, dict) else None

    def put(self, key: Mapping[str, Any], value: Mapping[str, Any], effort_s: float = 0.0) -> None:
        """Keep a document under a key, with the seconds that were allowed for each of its measurements."""
        path = self._path(key)
        if path is None:
            return
        with contextlib.suppress(OSError, OutputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"key": _full(key), "effort_s": effort_s, "value": value}).encode())

    def _path(self, key: Mapping[str, Any]) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256(json.dumps(_full(key), sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"


def _full(key: Mapping[str, Any]) -> dict[str, Any]:
    full = {**key, "schema": SCHEMA, "openvino": ov.get_version(), "processors": usable_cpus()}
    normal: dict[str, Any] = json.loads(json.dumps(full))
    return normal


def identity(spec: DeviceSpec) -> dict[str, Any]:
    """What a device's figures depend on: the hardware by its full name, the properties, and torch where it is torch's.

    Torch's devices are "cpu" and "cuda:0"; OpenVINO writes its own in capitals.
    """
    own: dict[str, Any] = {"plugin": spec.plugin, "properties": dict(sorted(spec.properties.items()))}
    is_cuda, is_torch = spec.plugin.startswith("cuda"), spec.plugin.islower()
    if is_torch:
        import torch

        own |= {"torch": torch.__version__, "plugin": spec.plugin if is_cuda else "CPU"}
        if is_cuda:
            return {**own, "hardware": str(torch.cuda.get_device_name(spec.plugin))}
    try:
        return {**own, "hardware": str(ov.Core().get_property(own["plugin"], "FULL_DEVICE_NAME"))}
    except RuntimeError:
        return {**own, "hardware": ""}


MOST_BYTES = 4 << 30
"""What the files may take; the ones that were not used for longest are deleted first."""


class CompiledModels:
    """The cache of one process, for those of its devices that have one. A ``folder`` of None is the user's.

    OpenVINO writes into a folder of this process's own, named by its number, with links to what is kept already; what
    has been compiled to the end is linked from there. So a process that is killed leaves nothing half written behind
    but its own folder, which the next one deletes. A device with a CACHE_DIR of its own keeps that.
    """

    def __init__(self, core: Any, specs: Sequence[DeviceSpec], folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_folder() / "compiled"
        self._own = self._folder / str(os.getpid())
        self._devices = [spec for spec in specs if _is_cached(core, spec)]
        if not self._devices:
            return
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._tidy()
            self._link(self._folder, self._own)
        except OSError:  # nobody may write there, or link: nothing is kept
            self._devices = []
        for spec in self._devices:
            core.set_property(spec.openvino_name, {"CACHE_DIR": str(self._own)})

    def properties(self, target: str) -> dict[str, str]:
        """What ``compile_model`` needs beside a target: HETERO does not keep parts of a model, but the whole."""
        names = target.removeprefix("HETERO:").split(",") if target.startswith("HETERO:") else []
        is_cached = any(spec.openvino_name in names for spec in self._devices)
        return {"CACHE_DIR": str(self._own)} if is_cached else {}

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around every compilation: what it has written is kept where it comes to its end."""
        before = set(self._own.iterdir()) if self._devices else set()
        try:
            yield
        except BaseException:
            for path in set(self._own.iterdir()) - before if self._devices else ():
                path.unlink()
            raise
        if self._devices:
            self._link(self._own, self._folder)

    @staticmethod
    def _link(source: Path, target: Path) -> None:
        """Have all files of one folder in another one, too."""
        for path in source.iterdir():
            if path.is_file():
                with contextlib.suppress(FileExistsError):
                    (target / path.name).hardlink_to(path)

    def _tidy(self) -> None:
        """Delete the folders of processes that have ended, and the oldest files beyond MOST_BYTES."""
        entries = list(self._folder.iterdir())
        for path in entries:
            if path.is_dir() and not psutil.pid_exists(int(path.name)):
                shutil.rmtree(path, ignore_errors=True)
        files = {path: path.stat() for path in entries if path.is_file()}
        left_bytes = sum(found.st_size for found in files.values())
        for path, found in sorted(files.items(), key=lambda item: max(item[1].st_atime, item[1].st_mtime)):
            if left_bytes <= MOST_BYTES:
                break
            path.unlink(missing_ok=True)
            left_bytes -= found.st_size


def _is_cached(core: Any, spec: DeviceSpec) -> bool:
    if spec.plugin.startswith("CPU") or "CACHE_DIR" in spec.properties:
        return False
    try:
        return "EXPORT_IMPORT" in core.get_property(spec.openvino_name, "OPTIMIZATION_CAPABILITIES")
    except RuntimeError:
        return False
