"""Placements: the file format, the models that are compiled for them, and the submodels that HETERO makes."""
