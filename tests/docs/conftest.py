"""The option that runs the quickstart as it is printed."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--literal", action="store_true", help="Run the quickstart's commands as they are printed.")
