"""CompiledModels: OpenVINO's cache of compiled models, for plugins that take long to compile, as GPUs do.

OpenVINO keeps what a plugin compiled as a file, by the model, its affinities and all properties (CACHE_DIR). The CPU
plugin compiles faster than a file of its weights is written, so its devices have no cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.profiling.profile_cache import cache_folder

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
