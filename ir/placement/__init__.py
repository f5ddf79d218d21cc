"""Placements: the artefact, the models that are compiled for it, and what HETERO makes of these."""
