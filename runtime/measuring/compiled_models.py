"""CompiledModels: OpenVINO's cache of compiled models, for plugins that take long to compile, as GPUs do.

OpenVINO keeps what a plugin compiled as a file, by the model, its affinities and all properties (CACHE_DIR). The CPU
plugin compiles faster than a file of its weights is written, so its devices have no cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.profiling.profile_cache import cache_folder

MOST_BYTES = 4 << 30
"""What the files may take; the ones that were not used for longest are deleted first."""

MARK = "compiling-"
"""How the names of files begin that say which process compiles: what it leaves half written is deleted."""


class CompiledModels:
    """The cache of one process, for those of its devices that have one. A ``folder`` of None keeps nothing.

    A device with a CACHE_DIR of its own keeps that.
    """

    def __init__(self, core: Any, specs: Sequence[DeviceSpec], folder: Path | None = None) -> None:
        self._folder = folder if folder is not None else cache_folder() / "compiled"
        self._devices = [spec for spec in specs if _is_cached(core, spec)]
        if not self._devices:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
        except OSError:  # nobody may write there: nothing is kept
            self._devices = []
        for spec in self._devices:
            core.set_property(spec.openvino_name, {"CACHE_DIR": str(self._folder)})

    def properties(self, target: str) -> dict[str, str]:
        """What ``compile_model`` needs beside a target: HETERO does not keep parts of a model, but the whole."""
        names = target.removeprefix("HETERO:").split(",") if target.startswith("HETERO:") else []
        is_cached = any(spec.openvino_name in names for spec in self._devices)
        return {"CACHE_DIR": str(self._folder)} if is_cached else {}

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around every compilation."""
        if not self._devices:
            yield
            return
        mark = self._folder / f"{MARK}{os.getpid()}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Delete what a process wrote that was killed while it compiled, and the oldest files beyond MOST_BYTES."""
        files = {path: path.stat() for path in self._folder.iterdir()}
        for mark in [path for path in files if path.name.startswith(MARK)]:
            began = files.pop(mark)
            if not psutil.pid_exists(int(mark.name.removeprefix(MARK))):
                for path in [path for path, found in files.items() if found.st_mtime >= began.st_mtime]:
                    path.unlink(missing_ok=True)
                    del files[path]
                mark.unlink(missing_ok=True)
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
