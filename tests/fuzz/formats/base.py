"""Format: a kind of input that hsdag reads, its valid seeds, and the code that reads it; one file for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from typing import TypeAlias

from tests.fuzz.mutations import mutate

HERE = Path(__file__).parent.parent
READ = "the input has been read"
"""What a reader says that was stopped before it went on to measure."""

Files: TypeAlias = Mapping[str, bytes]
"""An input: the content of every file by its name."""


@dataclass(frozen=True)
class Format:
    """``read`` takes the folder with the files of an input; it may raise HsdagError, and nothing else."""

    read: Callable[[Path], object]
    make: Callable[[Files, Random], Files] | None = None
    """Another way than ``mutated`` to make an input."""


def find_format(name: str) -> Format:
    """The format that a file of this folder defines."""
    found: Format = import_module(f"tests.fuzz.formats.{name}").FORMAT
    return found


def format_names() -> list[str]:
    """All of them, sorted."""
    found = (module.name for module in iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name != "base")


def seeds_of(name: str) -> list[Files]:
    """The valid inputs that come with the tests."""
    return [_files(folder) for folder in sorted((HERE / "seeds" / name).iterdir())]


def corpus_of(name: str) -> dict[str, Files]:
    """Inputs by name that once were not read as they should be."""
    folder = HERE / "corpus" / name
    return {each.name: _files(each) for each in sorted(folder.iterdir())} if folder.is_dir() else {}


def _files(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_files(files: Files, folder: Path) -> None:
    """Put an input in a folder in place of what is there."""
    for path in folder.iterdir():
        if path.name not in files and path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def drawn(name: str, seeds: Iterable[Files], rng: Random) -> Files:
    """An input made from one of the seeds."""
    seed, make = rng.choice(list(seeds)), find_format(name).make
    return mutated(seed, rng) if make is None else make(seed, rng)


def mutated(files: Files, rng: Random) -> Files:
    """The files of an input, one of them wrong or missing."""
    found = dict(files)
    name = rng.choice(list(found))
    if len(found) > 1 and rng.random() < 0.02:
        del found[name]
    else:
        found[name] = mutate(name, found[name], rng)
    return found
