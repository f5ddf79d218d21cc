"""Commands as tests run them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hsdag.cli.app import run


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """What a command answers with --json."""
    assert run([*map(str, words), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document
