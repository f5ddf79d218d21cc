"""What hsdag needs without extras, as installed beside the interpreter that runs this."""

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def declared() -> list[str]:
    """Return the requirements of hsdag itself."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])


def required(requirements: list[str], extras: tuple[str, ...] = ()) -> list[Requirement]:
    """Those that hold on this machine, for a package of which these extras are wanted."""
    found = [Requirement(text) for text in requirements]
    return [each for each in found if not each.marker or any(each.marker.evaluate({"extra": e}) for e in ("", *extras))]


def needed() -> dict[str, tuple[Distribution, set[str]]]:
    """Every package that hsdag needs, directly or not, and the names of those that it needs itself."""
    waiting = required(declared())
    found: dict[str, tuple[Distribution, set[str]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        package, before = found.get(name, (distribution(name), set()))
        further = required(package.requires or [], tuple(extras))
        found[name] = (package, before | {canonicalize_name(each.name) for each in further})
        waiting += further
    return dict(sorted(found.items()))


def version(package: Distribution) -> str:
    """As published: without what says how it was built."""
    return package.version.partition("+")[0]
