"""ProfileCache: profiles kept in the user's cache folder, so that nothing is measured twice on one machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
import platformdirs

from hsdag.ir.errors import OutputError
from hsdag.ir.placement import write_atomically
from hsdag.runtime.platforms.usable_cpus import usable_cpus

SCHEMA = 3
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
