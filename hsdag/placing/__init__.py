"""hsdag place: from a model to its answer."""
