"""Pages in headless Chromium, which is Debian's; tests are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from hsdag.commands.report.page import report_html
from tests.conftest import made_once
from tests.hsdag.commands.report.examples import RUN

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


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the example, with the list of layers that large graphs have."""
    file = "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hsdag.commands.report.page.LARGE", 1)
        patch.setattr("hsdag.commands.report.page.MOST", 2)
        write = lambda to: (to / file).write_text(report_html(RUN), encoding="utf-8")  # noqa: E731
        folder = made_once(tmp_path_factory, "page", write)
    return (folder / file).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install Debian's package chromium, or name one in $CHROMIUM")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def page(browser: Browser, html: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page, opened from disk, its figures drawn; fails if it ever complains, or asks for anything else."""
    complaints: list[str] = []

    def heard(dialog: Dialog) -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html)
    opened = browser.new_page()
    opened.on("console", lambda message: complaints.append(message.text) if message.type != "info" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
    opened.on("dialog", heard)
    opened.goto(file.as_uri())
    opened.wait_for_function(READY)
    yield opened
    opened.close()
    assert [line for line in complaints if "setting log level" not in line] == []
