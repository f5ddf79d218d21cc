"""Exact placement: DiviML's formulation (1)-(7) for CP-SAT and SCIP, and MILP-SPLIT over modules of a graph."""
