"""Fuzzing guided by coverage (``make fuzz MINUTES=N``), by atheris; every format has its share of the time.

What breaks a promise is written as an input of its format to artifacts/fuzz/FORMAT, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [Path(folder) / name for folder, _, names in os.walk(ROOT / "hsdag", followlinks=True) for name in names]
COMPILED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in SOURCES
    if path.suffix == ".py" and re.search(r"import numba|ir\.compiled|ir\.kernels", path.read_text(encoding="utf-8"))
]
"""Modules that are not instrumented: numba cannot compile what traces itself."""

with atheris.instrument_imports(include=["hsdag"], exclude=COMPILED):
    from tests.fuzz.formats.base import corpus_of, find_format, format_names, seeds_of, write_files
    from tests.fuzz.mutations import mutate
    from tests.fuzz.trial import LIMIT_S, PEAK_BYTES, Outcome, try_input

LARGEST_BYTES = 65_536
"""Of an input."""


def pack(name: str, content: bytes) -> bytes:
    """A file of an input, as the fuzzer holds it; the other files are those of a seed."""
    return name.encode() + b"\0" + content


def fuzz(format_name: str, flags: list[str]) -> None:
    """Try inputs of a format until the flags of libFuzzer say that it is enough."""
    seeds = seeds_of(format_name)
    made = tempfile.TemporaryDirectory()
    folder, corpus = Path(made.name) / "input", Path(made.name) / "corpus"
    folder.mkdir()
    corpus.mkdir()
    with atheris.instrument_imports(include=["hsdag"], exclude=COMPILED):
        format_ = find_format(format_name)
        for files in seeds:  # which imports what is imported on first use
            write_files(files, folder)
            try_input(format_, folder)

    def try_one(data: bytes) -> None:
        name, _, content = data.partition(b"\0")
        chosen = next((files for files in seeds if name.decode(errors="replace") in files), None)
        if chosen is None:
            return
        write_files({**chosen, name.decode(): content}, folder)
        outcome, why = try_input(format_, folder)
        if outcome not in (Outcome.ACCEPTED, Outcome.REFUSED):
            raise AssertionError(why)

    def changed(data: bytes, most: int, seed: int) -> bytes:
        if format_.make is not None:
            name, content = next(iter(format_.make(Random(seed).choice(seeds), Random(seed)).items()))
            return pack(name, content)[:most]
        name = bytes(data).partition(b"\0")[0].decode(errors="replace")
        with contextlib.suppress(Exception):  # of content that is so broken that it has no parts to change
            if seed % 2 == 0:
                return pack(name, mutate(name, bytes(data).partition(b"\0")[2], Random(seed)))[:most]
        return bytes(atheris.Mutate(data, most))

    for number, files in enumerate([*seeds, *corpus_of(format_name).values()]):
        for name, content in files.items():
            (corpus / f"{number}-{name}").write_bytes(pack(name, content))
    atheris.Setup([sys.argv[0], str(corpus), *flags], try_one, custom_mutator=changed)
    atheris.Fuzz()


def main() -> int:
    """Fuzz every format in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--formats", default=",".join(format_names()))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.formats.split(",")
    seconds = max(1, round(60 * given.minutes / len(names)))
    found = []
    for name in names:
        findings = ROOT / "artifacts" / "fuzz" / name
        findings.mkdir(parents=True, exist_ok=True)
        if given.one:
            memory = f"-rss_limit_mb={PEAK_BYTES // 1_000_000}"
            flags = [f"-max_total_time={seconds}", f"-timeout={LIMIT_S:g}", memory, f"-max_len={LARGEST_BYTES}"]
            fuzz(name, [*flags, f"-artifact_prefix={findings}/", "-print_final_stats=1"])
            return 0
        sys.stderr.write(f"{name}: {seconds} s\n")
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.guided",
            "--one",
            "--formats",
            name,
            "--minutes",
            str(seconds / 60),
        ]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode:
            found.append(name)
    sys.stderr.write(f"findings in {', '.join(found)}: see artifacts/fuzz\n" if found else "no findings\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
