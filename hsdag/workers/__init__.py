"""Fleets: workers, here or on other machines, that compute jobs of a search; any of them may be lost at any time."""
