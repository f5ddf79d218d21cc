"""Placements: the artefact, and the models that are compiled for it."""
