"""The model as a graph: reading, co-location, coarsening, HETERO's submodels, placements."""
