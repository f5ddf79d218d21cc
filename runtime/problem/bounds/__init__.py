"""Lower bounds: what no placement and no schedule of a problem can beat."""
