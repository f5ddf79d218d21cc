"""Cuts: place ops for sequential execution by minimum cuts of the graph, and for throughput in pipeline stages."""
