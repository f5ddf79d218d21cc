"""Compile the OpenVINO extension library that programs load, from the package's sources, once per OpenVINO version."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import openvino as ov

from hsdag.base.errors import ExecutionError, OutputError
from hsdag.base.files import cache_folder, new_folder

SOURCES = Path(__file__).with_name("extension")

LIBRARY, PLACEMENTS = "libhsdag.so", "libhsdag_placements.so"
"""The library that programs load, and the one that it loads in turn if it was compiled for the running OpenVINO."""

COMPILED = {LIBRARY: ("library.cpp",), PLACEMENTS: ("placements.cpp",)}
"""Source files of each library."""

FOR_CMAKE = ("CMakeLists.txt", "library.cpp", "placements.cpp", "engine.hpp")
"""Files that are written to the folder, to be compiled later, if there is no compiler."""

FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete")
"""Compiler flags. A library stays loaded (``nodelete``): models may outlive their core, and their ops are its code."""

COMPILERS = ("g++", "c++", "clang++")

COMPILE_LIMIT_S = 600.0


def write_library(folder: Path) -> str | None:
    """Write the library for the installed OpenVINO, from the cache or newly compiled; the cache keeps it.

    If it cannot be compiled, write its sources to the subfolder ``extension`` and return a sentence for the user.
    """
    content = b"".join((SOURCES / name).read_bytes() for name in FOR_CMAKE)
    key = hashlib.sha256(repr((content, ov.get_version(), FLAGS)).encode()).hexdigest()[:16]
    kept = cache_folder() / "extensions" / key
    if all((kept / name).is_file() for name in COMPILED):
        _copy(COMPILED, kept, folder)
        return None
    try:
        compile_library(folder)
    except ExecutionError as error:
        (folder / "extension").mkdir()
        _copy(FOR_CMAKE, SOURCES, folder / "extension")
        return f"the extension library is not compiled, because {error}: README.md has the command that does it"
    with suppress(OSError, OutputError):  # without the cache, it is compiled again next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(kept) as temporary:
            _copy(COMPILED, folder, temporary)
    return None


def compile_library(folder: Path) -> None:
    """Compile the library for the installed OpenVINO. Raises ExecutionError if that is not possible."""
    compiler, package, runtime = toolchain()
    for name, sources in COMPILED.items():
        linked = [runtime] if name == PLACEMENTS else []  # LIBRARY must load with any OpenVINO version
        arguments: list[str | Path] = [*(SOURCES / source for source in sources), *linked, "-o", folder / name]
        _run([compiler, *FLAGS, "-isystem", package / "include", *arguments])


def toolchain() -> tuple[str, Path, Path]:
    """Return a C++ compiler, the folder of OpenVINO's package with its headers, and OpenVINO's library to link to.

    Raises ExecutionError if one is missing.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    package = Path(ov.__file__).parent
    runtime = sorted(package.glob("libs/libopenvino.so.*"))
    if compiler is None:
        raise ExecutionError("there is no C++ compiler")
    if not (package / "include").is_dir() or not runtime:
        raise ExecutionError(f"OpenVINO in {package} comes without its headers")
    return compiler, package, runtime[-1]


def _run(command: Iterable[str | Path]) -> None:
    """Run a command. Raises ExecutionError, with the first error it prints, if it fails."""
    words = [*map(str, command)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutionError(f"{words[0]} does not run ({error})") from error
    if done.returncode:
        wrong = next((line for line in done.stderr.splitlines() if "error" in line), "it gives no reason")
        raise ExecutionError(f"{words[0]} fails ({wrong.strip()})")


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        shutil.copyfile(source / name, target / name)
