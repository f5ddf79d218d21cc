"""Writes docs/licences.md, the licences of what hsdag needs; it is not committed.

Usage: make licences, or python .ci/licences.py
"""

import sys
from importlib.metadata import Distribution

from needs import ROOT, declared, needed, required, version
from packaging.utils import canonicalize_name

PAGE = ROOT / "docs" / "licences.md"
BUILT_FOR_GPUS = ("cuda-", "nvidia-", "triton")
LONGEST = 40
HEAD = """# Licences

hsdag is under Apache-2.0. This is what it needs without extras, on Linux with Python 3.11 and the versions of
`constraints.txt`, with the licences that the packages declare; those in bold are asked for by hsdag itself. None of
them is part of hsdag's wheel. A torch that is built for CUDA brings NVIDIA's libraries, under licences of NVIDIA's, and
triton.

`make licences` writes this page, `make sbom` the same packages as a CycloneDX document.

| package | version | licence |
|---|---|---|
"""


def licence(package: Distribution) -> str:
    """Return the expression, else the name, else the class that the package declares."""
    metadata = package.metadata
    classes = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    name = (metadata.get("License-Expression") or metadata.get("License") or "").removeprefix("OSI Approved :: ")
    if name and len(name.splitlines()) == 1 and (metadata.get("License-Expression") or len(name) <= LONGEST):
        return name
    if not classes:
        sys.exit(f"{metadata['Name']} declares no licence: look for it, and do without the package where there is none")
    return classes[0].rpartition(" :: ")[2]


def page() -> str:
    """Return the whole page."""
    direct = {canonicalize_name(each.name) for each in required(declared())}
    rows = [
        f"| {f'**{name}**' if name in direct else name} | {version(package)} | {licence(package)} |\n"
        for name, (package, _) in needed().items()
        if not name.startswith(BUILT_FOR_GPUS)
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
