"""Placeto's comparisons: the figures of its main text are not part of this repository."""

from __future__ import annotations

from hsdag.reports.paper_tables.base import PaperTable

PAPER = "Placeto (NeurIPS 2019)"
COLUMNS = ("Placeto", "RNN-based", "best device", "min-cut")
UNSEEN = ("zero-shot", "best of 16 draws", "Placeto", "HEFT")

TABLES = (
    PaperTable(
        "placeto-1", PAPER, "Table 1", "Placeto, the RNN-based method, one device, a partitioner", "ms", COLUMNS,
        {name: (None,) * len(COLUMNS) for name in ("inception_v3", "enas", "nmt", "ptb")},
    ),
    PaperTable(
        "placeto-2", PAPER, "Generalisation", "Unseen graphs of a family, over annealing", "times annealing's", UNSEEN,
        {name: (None,) * len(UNSEEN) for name in ("enas", "nmt", "ptb", "random-wired", "chain")},
    ),
)  # fmt: skip
