"""The scheduling simulator: the time of a placement under a cost model; every figure it gives is simulated."""
