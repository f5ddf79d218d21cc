"""Tables of HSDAG (NeurIPS 2024): Core i9-12900K and Data Center GPU Flex 170, OpenVINO."""

from __future__ import annotations

from hsdag.reports.paper_tables.base import PaperTable

PAPER = "HSDAG (NeurIPS 2024)"
MODELS = ("inception_v3", "resnet50", "bert_base_uncased")

TABLES = (
    PaperTable(
        "hsdag-1", PAPER, "Table 1", "Statistics of the benchmark graphs", "", ("nodes", "edges", "mean degree"),
        {"inception_v3": (728, 764, 1.05), "resnet50": (396, 411, 1.04), "bert_base_uncased": (1009, 1071, 1.06)},
    ),
    PaperTable(
        "hsdag-2", PAPER, "Table 2", "Latency of an inference by placement", "s",
        ("CPU-only", "GPU-only", "OpenVINO-CPU", "OpenVINO-GPU", "Placeto", "RNN-based", "HSDAG"),
        {
            "inception_v3": (0.0128, 0.0120, 0.0128, 0.0138, 0.0116, 0.0128, 0.0105),
            "resnet50": (0.0160, 0.00781, 0.0234, 0.00876, 0.00932, 0.00875, 0.00766),
            "bert_base_uncased": (0.00638, 0.00277, 0.00657, 0.00284, 0.00651, "out of memory", 0.00267),
        },
    ),
    PaperTable(
        "hsdag-3", PAPER, "Table 3", "HSDAG without groups of its features: latency of an inference", "s",
        ("CPU-only", "HSDAG", "without output shape", "without node ID", "without graph structure"),
        {
            "inception_v3": (0.0128, 0.0105, 0.0117, 0.0117, 0.0109),
            "resnet50": (0.0160, 0.00766, 0.00768, 0.00768, 0.00766),
            "bert_base_uncased": (0.00638, 0.00267, 0.00278, 0.00279, 0.00268),
        },
    ),
    PaperTable(
        "hsdag-4", PAPER, "Table 4", "BERT: outputs of two placements compared", "",
        ("mean squared error", "cosine similarity", "L2 norm"),
        {
            "CPU and GPU": (3.049e-05, 0.999, 0.432),
            "CPU and HSDAG": (6.819e-07, 0.999, 0.064),
            "GPU and HSDAG": (3.174e-05, 0.999, 0.441),
        },
    ),
    PaperTable(
        "hsdag-5", PAPER, "Table 5", "Time of a search", "s", ("Placeto", "RNN-based", "HSDAG"),
        {
            "inception_v3": (2808, 3706, 2454),
            "resnet50": (1162, 1212, 1047),
            "bert_base_uncased": (4512, "out of memory", 2765),
        },
    ),
)  # fmt: skip
