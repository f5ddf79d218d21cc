"""The page in a browser: it renders and reacts, without a complaint, a request, or a name that is taken for markup."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from hsdag.commands.report.graph import PlacedGraph
from tests.hsdag.commands.report.examples import EVIL, FAST, NAMES, RUN

MODEL = "name => Bokeh.documents[0].get_model_by_name(name)"
SETTLED = "Bokeh.documents[0].is_idle"


def model(page: Page, name: str, expression: str) -> Any:
    """The value of a JavaScript expression on the figure or widget of that name."""
    return page.evaluate(f"(name => {{ const it = ({MODEL})(name); return {expression} }})({name!r})")


def test_every_figure_is_drawn_and_names_with_markup_stay_text(page: Page) -> None:
    assert page.locator(".bk-Figure").count() == 3
    assert page.evaluate("[...document.querySelectorAll('section .bk-Figure')].every(each => each.offsetHeight > 50)")
    assert page.title() == f"{EVIL}, placed by hsdag"
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator("img").count() == 0
    assert page.locator("#profile td").first.inner_text() == NAMES[1]
    assert f"{FAST}, ms" in page.locator("#profile th").all_inner_texts()


def test_an_op_tells_its_figures_as_text_where_one_points_at_it(page: Page) -> None:
    figure = page.locator("#graph .bk-Figure")
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    assert box is not None
    drawing = PlacedGraph.of(RUN).drawing
    view = "Bokeh.index.find_one(it).frame"
    x = model(page, "graph", f"{view}.x_scale.compute({drawing.x[1]})")
    y = model(page, "graph", f"{view}.y_scale.compute({drawing.y[1]})")
    page.mouse.move(box["x"] + x, box["y"] + y)
    tip = page.locator(".bk-Tooltip:visible")
    tip.wait_for()
    shown = tip.evaluate("it => it.shadowRoot.textContent")
    assert NAMES[1] in shown
    assert "4 ms" in shown


def test_a_search_selects_ops_and_goes_to_the_first_and_next_to_the_next(page: Page) -> None:
    field = page.get_by_label("Search by name or type")
    field.type("right")
    page.wait_for_function(SETTLED)
    ops = "it.renderers.find(each => each.glyph.type == 'Rect').data_source"
    assert model(page, "graph", f"{ops}.selected.indices.map(i => {ops}.data.name[i])") == [NAMES[3]]
    assert model(page, "graph", "(it.x_range.start + it.x_range.end) / 2") == pytest.approx(2.0)
    field.fill("")
    field.type("t")
    page.get_by_role("button", name="Next").click()
    page.wait_for_function(SETTLED)
    assert page.locator(".count").evaluate("it => it.shadowRoot.textContent").endswith("2 of 5")


def test_a_layer_of_a_large_graph_goes_to_its_ops(page: Page) -> None:
    assert page.locator("#graph summary").count() == 2
    page.locator("#graph summary").last.click()
    page.get_by_role("button", name="Show in the graph").locator("visible=true").click()
    page.wait_for_function(SETTLED)
    drawing = PlacedGraph.of(RUN).drawing
    shown = model(page, "graph", "[it.x_range.start, it.x_range.end]")
    assert shown == pytest.approx([drawing.x[3:].min() - 2, drawing.x[3:].max() + 2])
    page.wait_for_function("Math.abs(document.querySelector('#graph .bk').getBoundingClientRect().top - 44) < 2")


def test_a_page_follows_the_theme_of_the_system_and_the_button_and_is_light_on_paper(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme == 'dark'")
    of_legend = "it.above.find(each => each.type == 'Legend').label_text_color.trim()"
    assert model(page, "graph", of_legend) == "#e4e9ee"
    zoom = "dispatchEvent(new Event('beforeprint')), [root.dataset.theme, document.querySelector('.bk').style.zoom]"
    width = page.evaluate("document.querySelector('.bk').offsetWidth")
    assert page.evaluate(zoom) == ["light", f"{640 / width:g}"]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Light theme").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark, light) == ("rgb(18, 23, 29)", "rgb(255, 255, 255)")
    assert model(page, "graph", of_legend) == "#1b2430"
