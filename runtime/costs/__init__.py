"""Cost models of placements under HETERO and under the work-conserving executor, fitted to measured latencies."""
