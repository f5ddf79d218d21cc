"""What pyproject.toml cannot say: folders at the top belong to the package; files of a wheel have one date and mode."""

import os
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

EARLIEST = "315532800"
"""1980-01-01, before which archives have no dates."""


class EqualWheel(bdist_wheel):
    """Packs files without the modes that they happen to have in a checkout."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Write the metadata, which is the last that is added to the folder to pack."""
        super().egg2dist(egginfo_path, distinfo_path)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


runpy.run_path(str(Path(__file__).with_name("links.py")))["make_links"]()
os.environ.setdefault("SOURCE_DATE_EPOCH", EARLIEST)
os.umask(0o022)
setup(cmdclass={"bdist_wheel": EqualWheel})
