r"""Draws report.png anew: the graph of a report, as a browser shows it.

    hsdag models build inception_v3 -o inception_v3.xml
    hsdag place inception_v3.xml --devices "FAST=CPU[INFERENCE_NUM_THREADS=1],SLOW=CPU[INFERENCE_NUM_THREADS=1]" \
        --memory FAST=60MiB,SLOW=80MiB --executor work-conserving --budget 60s
    hsdag report inception_v3.placement.run -o report.html
    python docs/images/report.py report.html

Needs playwright and a Chromium ($CHROMIUM, or Debian's).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_suffix(".png")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1160, "height": 900})
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
        page.locator("#graph").screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
