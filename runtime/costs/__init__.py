"""Costs: what a placement takes under HETERO and under the work-conserving executor, and fits to measured latencies."""
