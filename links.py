"""Link the folders at the top into the package, from which they are imported: ``hsdag/ir`` is ``ir``.

``setup.py`` does so before the package is built or installed, and ``python links.py`` does nothing else.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FOLDERS = ("ir", "features", "runtime", "models")
WINDOWS = os.name == "nt"


def make_links(root: Path = ROOT) -> None:
    """Link ``hsdag/NAME`` to each of the folders; an unpacked sdist has none, but the files in the package."""
    for folder in (root / name for name in FOLDERS if (root / name).is_dir()):
        link = root / "hsdag" / folder.name
        if link.exists() and link.samefile(folder):
            continue
        remove(link)
        if WINDOWS:  # a junction needs no privilege; its path is absolute, and stale where the checkout moves
            import_module("_winapi").CreateJunction(str(folder), str(link))
        else:
            link.symlink_to(Path("..", folder.name), target_is_directory=True)


def remove(path: Path) -> None:
    """Remove a link to another place, or the compiled files of a folder that was here before; raise for others."""
    try:
        path.readlink()  # of junctions, too, which are no symbolic links to pathlib
    except OSError:
        if any(file.is_file() and file.parent.name != "__pycache__" for file in path.rglob("*")):
            raise FileExistsError(f"{path} has to be a link, and holds files: move them away") from None
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


if __name__ == "__main__":
    make_links()
