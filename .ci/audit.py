"""Whether a version that hsdag is tested with has a known vulnerability, by the registry's own advisories.

Exit status 1 when one has. Where the registry tells nothing, as offline, a line says so and nothing fails.

Usage: make audit, or python .ci/audit.py PIP_AUDIT
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

from needs import needed, version

LIMIT_S = 300.0


def report(tool: str) -> list[dict[str, Any]]:
    """Return what pip-audit tells of every package; nothing where it could not ask."""
    pinned = "".join(f"{name}=={version(package)}\n" for name, (package, _) in needed().items())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pinned)
        file.flush()
        command = [tool, "-r", file.name, "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            return list(json.loads(done.stdout)["dependencies"])
        except (OSError, json.JSONDecodeError, subprocess.TimeoutExpired):  # not installed, or no answer
            return []


def main() -> None:
    found = report(sys.argv[1])
    told = [package for package in found if "skip_reason" not in package]
    bad = [
        f"{package['name']} {package['version']}: {', '.join(v['id'] for v in package['vulns'])}"
        for package in told
        if package["vulns"]
    ]
    if bad:
        sys.exit("known vulnerabilities:\n" + "\n".join(bad))
    if not told:
        sys.stdout.write("nothing was audited: the package registry tells no vulnerabilities here\n")
        return
    left_out = f"; it says nothing of {len(found) - len(told)}" if len(told) < len(found) else ""
    sys.stdout.write(f"the registry knows no vulnerability of {len(told)} packages{left_out}\n")


if __name__ == "__main__":
    main()
