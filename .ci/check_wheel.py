"""Builds a wheel and compares its files with the tree: fails in a clone whose symlinks are plain files."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = (".py", ".safetensors", ".css", ".jinja", ".js")
PARTS = ("ir", "features", "runtime", "models")


def main() -> None:
    broken = [part for part in PARTS if not (ROOT / "hsdag" / part).is_dir()]
    if broken:
        sys.exit(f"hsdag/{broken[0]} is no folder: clone with symlinks enabled (git config core.symlinks true)")
    expected = {str(path.relative_to(ROOT)) for kind in KINDS for path in (ROOT / "hsdag").glob(f"**/*{kind}")}
    for part in PARTS:
        expected |= {f"hsdag/{path.relative_to(ROOT)}" for path in (ROOT / part).glob("**/*.py")}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found = {name for name in archive.namelist() if name.endswith(KINDS)}
            typed = "hsdag/py.typed" in archive.namelist()
    if found != expected or not typed:
        sys.exit(f"the wheel and the tree differ: {sorted(found ^ expected) or 'py.typed is missing'}")
    sys.stdout.write(f"the wheel holds all {len(found)} modules and policies\n")


if __name__ == "__main__":
    main()
