"""Sizes of reports, their first paint, and how long zooming and searching take in headless Chromium, against the bars.

Inception-v3 comes from the zoo, with a made-up profile and placement; the large model is a made-up graph. Needs the
extra ``report``, playwright and a Chromium ($CHROMIUM, or Debian's).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from hsdag.ir.build import graph_of
from hsdag.ir.graph import ComputationGraph, graph_from_edges
from hsdag.ir.reader import load_model
from hsdag.models import save_model_files
from hsdag.reports.content import PlacedGraph, ReportContent
from hsdag.reports.html import report_html

BARS = {"size MB": 5.0, "first paint s": 3.0, "zoom ms": 200.0, "search ms": 200.0}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]

STEPS = """async () => {
  const page = Bokeh.documents[0]
  const graph = page.get_model_by_name("graph")
  const field = [...page._all_models.values()].find(each => each.type == "TextInput" && each.title.startsWith("Search"))
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))
  const settled = async () => { await frame(); while (!page.is_idle) await frame() }
  const now = () => performance.now()
  const timed = async (act) => { const begin = now(); act(); await settled(); return now() - begin }
  const [xs, ys] = [graph.x_range, graph.y_range]
  const whole = [xs.start, xs.end, ys.start, ys.end]
  const centre = (xs.start + xs.end) / 2, reach = (xs.end - xs.start) / 2
  const taken = {zoom: [], search: []}
  for (const share of [0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 1.0])
    taken.zoom.push(await timed(() => xs.setv({start: centre - share * reach, end: centre + share * reach})))
  for (const text of ["c", "co", "conv", "op_2", "relu", ""]) {
    xs.setv({start: whole[0], end: whole[1]}); ys.setv({start: whole[2], end: whole[3]}); await settled()
    taken.search.push(await timed(() => { field.value_input = text }))
  }
  return taken
}"""


def made_up(num_ops: int) -> ComputationGraph:
    """A long graph with branches and skips."""
    rng = np.random.default_rng(0)
    edges = {(max(0, v - int(rng.integers(1, 6))), v) for v in range(1, num_ops)}
    edges |= {(max(0, v - int(rng.integers(1, 9))), v) for v in range(1, num_ops) if rng.random() < 0.4}
    edges |= {(v - int(rng.integers(50, 150)), v) for v in range(200, num_ops) if rng.random() < 0.02}
    types = ["Parameter", *rng.choice(["Convolution", "Add", "Relu", "Concat", "MatMul"], num_ops - 1).tolist()]
    names = [f"model/block_{v // 20}/op_{v}" for v in range(num_ops)]
    return graph_from_edges(types, sorted(edges), op_names=names, shapes=[(1, 64, 56, 56)] * num_ops)


def content_of(graph: ComputationGraph) -> ReportContent:
    """A report of a graph that is cut into stretches over two devices."""
    time_s = np.random.default_rng(0).lognormal(-8.0, 1.5, (graph.num_ops, 2))
    stretch = graph.position // max(graph.num_ops // 14, 1)
    placed = PlacedGraph(graph, ("CPU_0", "CPU_1"), stretch % 2, stretch, "part", time_s)
    return ReportContent(name=graph.name, sentence="A report to be timed.", placed=placed)


def measure(html: str, folder: Path) -> dict[str, float]:
    """The figures of a page, by the names of BARS; of several steps the slowest."""
    file = folder / "report.html"
    file.write_text(html)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium here: install Debian's package chromium, or name one in $CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle", timeout=60_000)
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        ready_ms = page.evaluate("performance.now()")
        taken = page.evaluate(STEPS)
        browser.close()
    print(f"  all figures after {ready_ms / 1e3:.2f} s; zoom {taken['zoom']}; search {taken['search']}")
    sizes = {"size MB": len(html.encode()) / 1e6, "first paint s": paint_ms / 1e3}
    return {**sizes, "zoom ms": max(taken["zoom"]), "search ms": max(taken["search"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=3000, help="ops of the made-up graph")
    parser.add_argument("--quick", action="store_true", help="a tiny model and 300 ops")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), "tiny_inception" if options.quick else "inception_v3"
        graphs = {model: graph_of(load_model(save_model_files(model, folder / "model.xml")))}
        graphs["made up"] = made_up(300 if options.quick else options.ops)
        for title, graph in graphs.items():
            begin_s = time.monotonic()
            html = report_html(content_of(graph))
            print(f"{title}, {graph.num_ops} ops, written in {time.monotonic() - begin_s:.2f} s")
            for figure, value in measure(html, folder).items():
                verdict = "met" if value < BARS[figure] else "MISSED"
                print(f"  {figure}: {value:.2f}, bar {BARS[figure]:g}: {verdict}")


if __name__ == "__main__":
    main()
