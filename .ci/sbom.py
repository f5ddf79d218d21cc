"""Writes artifacts/sbom.cdx.json: what hsdag needs without extras, as a CycloneDX document that has been validated.

cyclonedx-bom describes all that is installed; what only developers need is left out here.

Usage: make sbom, or python .ci/sbom.py PYTHON_WITH_CYCLONEDX
"""

import json
import subprocess
import sys
from typing import Any

from needs import ROOT, declared, needed, required
from packaging.utils import canonicalize_name

from hsdag import __version__

OUT = ROOT / "artifacts" / "sbom.cdx.json"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(error) if error else 0)
"""


def installed(tool: str) -> dict[str, Any]:
    """Return what cyclonedx-bom says of everything beside this interpreter."""
    project = str(ROOT / "pyproject.toml")
    command = [tool, "-m", "cyclonedx_py", "environment", "--sv", "1.6", "--output-reproducible", "--short-PURLs"]
    done = subprocess.run([*command, "--pyproject", project, sys.executable], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def reduced(document: dict[str, Any]) -> dict[str, Any]:
    """Only what hsdag needs."""
    kept, direct = needed(), [canonicalize_name(each.name) for each in required(declared())]
    name_of = {each["bom-ref"]: canonicalize_name(each["name"]) for each in document["components"]}
    root = document["metadata"]["component"]
    root |= {"version": __version__, "purl": f"pkg:pypi/hsdag@{__version__}"}
    components = [each for each in document["components"] if name_of[each["bom-ref"]] in kept]
    ref_of = {name_of[each["bom-ref"]]: each["bom-ref"] for each in components}
    needs = {root["bom-ref"]: direct} | {ref: kept[name][1] for name, ref in ref_of.items()}
    edges = [{"ref": ref, "dependsOn": sorted(ref_of[name] for name in needs[ref])} for ref in sorted(needs)]
    return document | {"components": components, "dependencies": edges}


def main() -> None:
    tool = sys.argv[1]
    document = reduced(installed(tool))
    text = json.dumps(document, indent=2) + "\n"
    subprocess.run([tool, "-c", VALIDATE], input=text, text=True, check=True)
    missing = set(needed()) - {canonicalize_name(each["name"]) for each in document["components"]}
    if missing:
        sys.exit(f"the document leaves out {', '.join(sorted(missing))}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{OUT.relative_to(ROOT)}: {len(document['components'])} packages\n")


if __name__ == "__main__":
    main()
