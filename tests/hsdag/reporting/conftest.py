"""Pages in headless Chromium, which is Debian's; tests are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from hsdag.reporting.page import report_html
from tests.conftest import made_once
from tests.hsdag.reporting.examples import RUN

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the example."""
    file = "page.html"
    folder = made_once(tmp_path_factory, "page", lambda to: (to / file).write_text(report_html(RUN), encoding="utf-8"))
    return (folder / file).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install Debian's package chromium, or name one in $CHROMIUM")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Opens a page from disk and waits for its figures; fails if it ever complains, or asks for anything else."""
    complaints: list[str] = []
    pages: list[Page] = []

    def heard(dialog: Dialog) -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    def opened(html: str, **context: object) -> Page:
        file = tmp_path / "report.html"
        file.write_text(html)
        page = browser.new_context(**context).new_page()  # type: ignore[arg-type]
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
        page.on("dialog", heard)
        page.goto(file.as_uri())
        page.wait_for_function(READY)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert [line for line in complaints if "setting log level" not in line] == []
