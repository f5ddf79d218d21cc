"""The profile as a table to sort and to filter; a row that is selected is shown in the graph, too."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsdag.reports.content import PlacedGraph

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, UIElement

HERE = Path(__file__).parent
HEIGHT_PX, LEAST_WIDTH_PX = 420, 760
SEARCHED = ["name", "type", "device"]
SHOWN = [*SEARCHED, "shape", "output_bytes", "weight_bytes"]
SHOW_IN_GRAPH = "graph.selected.indices = cb_obj.indices"


def profile_table(placed: PlacedGraph, graph: ColumnDataSource) -> list[UIElement]:
    """A field to filter with, and the table of ops in the order of ``graph``, the source of the drawn ones.

    It has a source of its own, because a table takes the keyboard from a search field whenever its selection changes.
    """
    from bokeh.models import (
        CDSView,
        ColumnDataSource,
        CustomJS,
        DataTable,
        IndexFilter,
        NumberFormatter,
        StringFormatter,
        TableColumn,
        TextInput,
    )

    order = np.argsort(-placed.cost_s, kind="stable")
    times_ms = {f"ms_{d}": 1e3 * placed.time_s[order, d] for d in range(len(placed.devices))}
    source = ColumnDataSource({name: graph.data[name] for name in SHOWN} | times_ms)
    source.selected.js_on_change("indices", CustomJS(args={"graph": graph}, code=SHOW_IN_GRAPH))
    rows = IndexFilter(indices=list(range(placed.graph.num_ops)))
    times = NumberFormatter(format="0,0.0000", text_align="right", nan_format="-")
    sizes = NumberFormatter(format="0,0", text_align="right")
    columns = [
        TableColumn(field="name", title="op", width=260, formatter=StringFormatter()),
        TableColumn(field="type", title="type", width=110),
        TableColumn(field="device", title="device", width=80),
        *(
            TableColumn(field=f"ms_{d}", title=f"{escape(name)}, ms", width=90, formatter=times)
            for d, name in enumerate(placed.devices)
        ),
        TableColumn(field="shape", title="shape", width=130),
        TableColumn(field="output_bytes", title="output, bytes", width=100, formatter=sizes),
        TableColumn(field="weight_bytes", title="weights, bytes", width=100, formatter=sizes),
    ]
    table = DataTable(
        source=source,
        view=CDSView(filter=rows),
        columns=columns,
        height=HEIGHT_PX,
        sizing_mode="stretch_width",
        min_width=LEAST_WIDTH_PX,
        index_position=None,
        reorderable=False,  # would need jquery-ui
        name="profile",
    )
    script = CustomJS(args={"source": source, "filter": rows, "names": SEARCHED}, code=(HERE / "filter.js").read_text())
    field = TextInput(title="Filter by name, type or device", placeholder="such as MatMul", width=260, name="filter")
    field.js_on_change("value_input", script)
    return [field, table]
