"""Searches: run folders, preparation, the final comparison, and the outcome."""
