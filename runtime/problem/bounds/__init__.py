"""Lower bounds that no placement and no schedule of a problem can beat."""
