"""Builds the wheel of a copy of the tree, and of the sdist of another copy, with other dates and modes.

Fails where the two are not equal, where the wheel and the tree differ,
or where a file of the wheel names a folder of this machine or is compiled.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = (".py", ".safetensors", ".css", ".jinja", ".js", ".cpp", ".hpp", ".in", ".toml", ".txt")
FOLDERS: tuple[str, ...] = runpy.run_path(str(ROOT / "links.py"))["FOLDERS"]
BUILT_OF = ("hsdag", *FOLDERS, "links.py", "MANIFEST.in", "pyproject.toml", "setup.py", "README.md", "LICENSE")
COMPILED = (".pyc", ".so", ".o", ".a", ".dll", ".dylib")
FOLDER = re.compile(rb"(?<![\w.\-/:>~}*])/(?:home|root|Users|tmp|opt|mnt|srv|work|build|workspace)/[\w.\-]+")
"""A folder that only some machine has."""


def expected() -> set[str]:
    """Return the modules and policies of the tree, by their names in the wheel."""
    own = [path for kind in KINDS for folder in ("hsdag", *FOLDERS) for path in (ROOT / folder).glob(f"**/*{kind}")]
    names = [path.relative_to(ROOT).as_posix() for path in own]
    return {name if name.startswith("hsdag/") else f"hsdag/{name}" for name in names}


def not_committed(folder: str, names: list[str]) -> list[str]:
    """Return what git ignores in a folder of the product."""
    return [name for name in names if name == "__pycache__" or Path(folder, name).is_symlink()]


def copy(folder: Path, umask: int, date_s: float) -> Path:
    """Copy the tree to another folder as a clone under that umask has it, without links, with files of one date."""
    for name in BUILT_OF:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=not_committed)
        else:
            shutil.copy(ROOT / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (date_s, date_s))
    return folder


def wheel_of(folder: Path, umask: int, *flags: str) -> Path:
    """Built there; without ``--wheel``, of an sdist that is built first."""
    command = [sys.executable, "-m", "build", *flags, "--no-isolation", "--outdir", folder / "dist", folder]
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, umask=umask, env=environment)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def strange(archive: zipfile.ZipFile, folder: Path) -> list[str]:
    """Return what should not be in a wheel that was built in a folder."""
    found = [f"{name} is compiled" for name in archive.namelist() if name.endswith(COMPILED)]
    own = [str(path).encode() for path in (folder, ROOT, Path.home(), Path(sys.prefix)) if len(path.parts) > 1]
    for name in archive.namelist():
        content = archive.read(name)
        paths = [path for path in own if re.search(re.escape(path) + rb"[/\s'\"]", content)] + FOLDER.findall(content)
        found += [f"{name} names {path.decode()}" for path in paths]
    return found


def main() -> None:
    wanted = expected()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory(prefix="another-") as other:
        wheel = wheel_of(copy(Path(one), 0o077, 1e9), 0o077, "--wheel")
        again = wheel_of(copy(Path(other) / "deeper", 0o002, 1.5e9), 0o002)
        with zipfile.ZipFile(wheel) as archive:
            found = {name for name in archive.namelist() if name.startswith("hsdag/") and name.endswith(KINDS)}
            typed = "hsdag/py.typed" in archive.namelist()
            wrong = strange(archive, Path(one))
        equal = wheel.read_bytes() == again.read_bytes()
    if found != wanted or not typed:
        sys.exit(f"the wheel and the tree differ: {sorted(found ^ wanted) or 'py.typed is missing'}")
    if wrong:
        sys.exit("\n".join(wrong))
    if not equal:
        sys.exit("the wheel differs where it is built of an sdist, elsewhere, of files of other dates and modes")
    sys.stdout.write(f"the wheel holds all {len(found)} modules and policies, no absolute path; two builds are equal\n")


if __name__ == "__main__":
    main()
