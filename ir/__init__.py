"""The model as a graph: reading, co-location, coarsening, submodels of HETERO, placements."""
