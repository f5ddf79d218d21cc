"""Pages and files exist to which the documentation links, or which the sources mention."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from links import FOLDERS
from tests.docs.snippets import PAGES, ROOT

LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]*))?\)")
MENTION = re.compile(r"(?<![\w./:-])(?:[\w-]+/)*[\w-]+\.(?:py|md)\b")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)

MADE = {"docs/licences.md", "docs/reference/command-line.md", "docs/schemas"}
"""Pages and folders that are made with the site."""

PRODUCT = sorted(path for folder in ("hsdag", *FOLDERS, "benchmarks") for path in (ROOT / folder).rglob("*.py"))
OTHERS = [ROOT / "Makefile", ROOT / "links.py", ROOT / "setup.py", *sorted((ROOT / ".ci").iterdir())]
OTHERS += [
    path for kind in ("c", "cpp") for folder in ("hsdag", "tests") for path in (ROOT / folder).rglob(f"*.{kind}")
]
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@cache
def files() -> frozenset[str]:
    """Every Python file and page of the repository, and each end of its path."""
    paths = {path.relative_to(ROOT) for kind in ("py", "md") for path in ROOT.glob(f"[!.]*/**/*.{kind}")}
    paths |= {path.relative_to(ROOT) for path in ROOT.iterdir()} | {Path(path) for path in MADE}
    return frozenset("/".join(path.parts[i:]) for path in paths for i in range(len(path.parts)))


def exists(name: str) -> bool:
    """Return whether there is a file of this name, or with this end of its path."""
    return name in files() or any(name.startswith(f"hsdag/{folder}/") and name[6:] in files() for folder in FOLDERS)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    for name, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / name).resolve() if name else page
        path = target.relative_to(ROOT).as_posix()
        if any(path.startswith(made) for made in MADE):
            continue
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def comments_and_docstrings(text: str) -> Iterator[str]:
    """The texts of a Python file that are for readers alone."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_files_that_sources_mention_exist() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*PRODUCT, *OTHERS)}
    texts |= {path: "\n".join(comments_and_docstrings(path.read_text(encoding="utf-8"))) for path in TESTS}
    mentions = [(str(path.relative_to(ROOT)), name) for path, text in texts.items() for name in MENTION.findall(text)]
    assert len(mentions) > 50
    assert [(path, name) for path, name in mentions if not exists(name)] == []
