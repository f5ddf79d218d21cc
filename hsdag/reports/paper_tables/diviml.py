"""Tables of DiviML: randomly wired networks on a CPU, a T4 and an A100; GPT-3 on six such servers."""

from __future__ import annotations

from hsdag.reports.paper_tables.base import PaperTable

PAPER = "DiviML"
KINDS = ("1-chan", "sdep-2", "sdep-3", "sdep-4", "wdep-2", "wdep-3", "wdep-4")
"""Networks of ten modules: one channel, or several with strongly or weakly dependent ends."""

TABLES = (
    PaperTable(
        "diviml-1", PAPER, "Table I", "Latency of randomly wired networks of ten modules", "ms",
        ("best device", "MET", "Greedy", "HEFT", "(1+1) EA", "SA", "MILP", "MILP-SPLIT", "LBound"),
        {
            "1-chan": (211.7, 209.9, 104.4, 99.9, 97.5, 98.9, 80.1, 80.1, 80.1),
            "sdep-2": (234.9, 219.3, 111.8, 109.3, 103.8, 106.2, 78.9, 79.1, 73.7),
            "sdep-3": (236.5, 235.4, 114.2, 108.5, 104.7, 106.1, 79.9, 80.3, 68.1),
            "sdep-4": (250.5, 249.1, 116.3, 111.3, 107.6, 109.5, 79.1, 79.4, 61.3),
            "wdep-2": (225.2, 223.8, 103.7, 101.7, 97.3, 98.1, 74.3, 77.6, 73.3),
            "wdep-3": (229.9, 229.3, 107.4, 104.3, 100.9, 103.1, 76.6, 78.7, 71.8),
            "wdep-4": (242.9, 240.7, 106.8, 104.4, 102.0, 103.6, 71.6, 77.0, 62.1),
        },
    ),
    PaperTable(
        "diviml-3", PAPER, "Table III", "Time until the best solution is known", "s", ("MILP", "MILP-SPLIT"),
        {
            "sdep, 5 modules": (82.69, 2.26),
            "sdep, 10 modules": (232.24, 4.83),
            "sdep, 20 modules": (1907.12, 13.49),
            "wdep, 5 modules": (129.08, 2.45),
            "wdep, 10 modules": (271.66, 5.00),
            "wdep, 20 modules": (5850.37, 14.81),
        },
    ),
    PaperTable(
        "diviml-4", PAPER, "Table IV", "Throughput of randomly wired networks of ten modules", "images/s",
        ("best device", "MET", "Greedy", "HEFT", "(1+1) EA", "SA", "MILP", "MILP-SPLIT", "UBound"),
        {
            "1-chan": (54, 56, 74, 75, 84, 87, 114, 135, 164),
            "sdep-2": (48, 50, 67, 66, 75, 78, 95, 119, 180),
            "sdep-3": (49, 51, 68, 70, 78, 81, 116, 129, 196),
            "sdep-4": (47, 48, 65, 67, 76, 79, 73, 126, 209),
            "wdep-2": (51, 53, 76, 75, 86, 87, 89, 137, 182),
            "wdep-3": (49, 52, 73, 73, 82, 85, 72, 137, 181),
            "wdep-4": (47, 50, 72, 74, 82, 84, 65, 138, 207),
        },
    ),
    PaperTable(
        "diviml-5", PAPER, "Table V", "GPT-3 on six servers: inputs of 20 tokens", "inputs/s", ("throughput",),
        {
            "one server, MILP": (4.8,),
            "one server, MILP-SPLIT": (5.7,),
            "six servers, MILP-SPLIT, no symmetries": (5.0,),
            "six servers, MILP-SPLIT, symmetries by batches": (5.6,),
            "six servers, MILP-SPLIT, symmetries by tasks": (6.3,),
            "six servers, MILP-SPLIT, symmetries by time": (6.3,),
            "UBound": (9.9,),
        },
    ),
)  # fmt: skip
