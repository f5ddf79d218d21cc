"""Tables of DOPPLER (ICLR 2026): four P100 or eight V100, the authors' own engine; mean and deviation of ten runs."""

from __future__ import annotations

from hsdag.reports.paper_tables.base import PaperTable

PAPER = "DOPPLER (ICLR 2026)"
GRAPHS = ("chainmm", "ffnn", "llama-block", "llama-layer")
_SYS = ((123.4, 2.5), (47.4, 0.7), (160.3, 4.3), (150.6, 4.2))
_BLOCK = ((160.3, 4.3), (230.9, 8.7), (411.5, 19.7), (172.7, 5.0))
_LAYER = ((150.6, 4.2), (292.6, 5.8), (295.1, 7.0), (174.8, 4.7))

TABLES = (
    PaperTable(
        "doppler-1", PAPER, "Table 1", "A work-conserving and a synchronous system", "ms",
        ("work-conserving", "synchronous"), {"chainmm": (139, 185.3), "ffnn": (50.2, 76.9)},
    ),
    PaperTable(
        "doppler-2", PAPER, "Table 2", "Execution time on four P100", "ms",
        ("CRITICAL PATH", "PLACETO", "GDP", "ENUMERATIVEOPTIMIZER", "DOPPLER-SIM", "DOPPLER-SYS"),
        {
            "chainmm": ((230.4, 4.3), (137.1, 2.2), (198.0, 3.3), (139.0, 10.0), (122.5, 4.0), _SYS[0]),
            "ffnn": ((217.8, 11.3), (126.3, 5.8), (100.3, 3.2), (50.2, 2.5), (49.9, 1.1), _SYS[1]),
            "llama-block": ((230.9, 8.7), (411.5, 19.7), (336.5, 8.4), (172.7, 5.0), (191.5, 6.0), _SYS[2]),
            "llama-layer": ((292.6, 5.8), (295.1, 7.0), (231.5, 5.1), (174.8, 4.7), (167.0, 3.4), _SYS[3]),
        },
    ),
    PaperTable(
        "doppler-3", PAPER, "Table 3", "Both policies, SEL alone, PLC alone, on four P100", "ms",
        ("DOPPLER-SYS", "DOPPLER-SEL", "DOPPLER-PLC"),
        {
            "chainmm": (_SYS[0], (127.0, 0.8), (121.6, 0.7)),
            "ffnn": (_SYS[1], (59.1, 7.6), (63.2, 1.6)),
            "llama-block": (_SYS[2], (175.6, 4.1), (172.9, 4.3)),
            "llama-layer": (_SYS[3], (161.7, 4.1), (159.5, 4.9)),
        },
    ),
    PaperTable(
        "doppler-4", PAPER, "Table 4", "Transfer from one graph to another on four P100", "ms",
        ("zero-shot", "2k-shot", "4k-shot", "DOPPLER-SYS", "CRITICAL PATH", "PLACETO", "ENUMERATIVEOPTIMIZER"),
        {
            "ffnn to llama-block": ((251.0, 2.9), (165.3, 4.1), (159.4, 4.8), *_BLOCK),
            "chainmm to llama-block": ((242.3, 6.7), (184.9, 4.3), (174.0, 4.4), *_BLOCK),
            "ffnn to llama-layer": ((206.1, 4.5), (158.2, 4.1), (155.8, 5.0), *_LAYER),
            "chainmm to llama-layer": ((338.2, 5.0), (164.4, 3.3), (156.4, 4.4), *_LAYER),
        },
    ),
    PaperTable(
        "doppler-5", PAPER, "Table 5", "Five seeds of DOPPLER-SYS", "ms",
        ("seed 0", "seed 1", "seed 2", "seed 3", "seed 4"),
        {"chainmm": ((123.2, 3.7), (119.6, 2.2), (122.7, 2.1), (123.9, 2.5), (121.7, 0.9))},
    ),
    PaperTable(
        "doppler-6", PAPER, "Table 6", "Messages passed once per episode, or once per step", "ms",
        ("once per episode", "once per step"), {"chainmm": ((122.5, 4.0), (121.7, 3.2))},
    ),
    PaperTable(
        "doppler-7", PAPER, "Table 7", "PLACETO with and without imitation learning", "ms",
        ("PLACETO-pretrain", "PLACETO", "DOPPLER-SIM", "DOPPLER-SYS"),
        {"ffnn": ((99.0, 5.7), (126.3, 5.8), (49.9, 1.1), (47.4, 0.7))},
    ),
    PaperTable(
        "doppler-8", PAPER, "Table 8", "Four P100 restricted to 8 GB", "ms",
        ("1 GPU", "CRITICAL PATH", "PLACETO", "ENUMERATIVEOPTIMIZER", "DOPPLER-SYS"),
        {
            "chainmm": ((439.8, 4.6), (310, 4.9), (243.5, 5.9), (133.5, 10.4), (122.6, 2.2)),
            "ffnn": ((148.2, 19.4), (225.8, 19.4), (126.8, 5.7), (49.2, 0.9), (46.0, 0.8)),
            "llama-block": ((465.1, 7.8), (216.8, 4.6), (433.5, 6.2), (233.8, 8.1), (190.2, 11.2)),
            "llama-layer": ((482.6, 9.4), (292.5, 5.1), (302.1, 20.2), (172.8, 4.3), (154.0, 3.7)),
        },
    ),
    PaperTable(
        "doppler-9", PAPER, "Table 9", "Eight V100 in two groups", "ms",
        ("1 GPU", "CRITICAL PATH", "ENUMERATIVEOPTIMIZER", "DOPPLER-SYS"),
        {
            "chainmm": ((83.5, 4.1), (69.6, 2.6), (33.5, 2.5), (32.1, 0.7)),
            "ffnn": ((51.4, 1.8), (50.0, 6.0), (20.0, 2.6), (16.2, 2.3)),
            "llama-block": ((154.4, 6.3), (117.6, 6.0), (109.6, 4.2), (109.7, 3.0)),
            "llama-layer": ((105.0, 4.8), (105.4, 4.2), (97.5, 1.1), (90.6, 4.1)),
        },
    ),
    PaperTable(
        "doppler-10", PAPER, "Table 10", "FFNN on eight V100: edges by where they lead", "",
        ("across groups", "same group", "same GPU"), {"zero-shot": (22, 14, 172), "2k-shot": (7, 4, 197)},
    ),
    PaperTable(
        "doppler-11", PAPER, "Table 11", "Transfer from four P100 to eight V100", "ms",
        ("zero-shot", "2k-shot", "DOPPLER-SYS", "CRITICAL PATH", "ENUMERATIVEOPTIMIZER"),
        {
            "chainmm": ((59.2, 1.9), (26.0, 0.5), (32.1, 0.7), (69.6, 2.6), (33.5, 2.5)),
            "ffnn": ((23.1, 2.3), (14.4, 2.5), (16.2, 2.3), (50.0, 6.0), (20.0, 2.6)),
        },
    ),
)  # fmt: skip
