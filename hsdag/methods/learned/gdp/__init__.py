"""GDP: a graph encoder and segments of attention place all units in one pass (Zhou et al. 2019)."""
