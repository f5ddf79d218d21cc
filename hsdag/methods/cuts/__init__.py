"""Cuts: sequential execution as a minimum cut of the graph, and pipelines for throughput."""
