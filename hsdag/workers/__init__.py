"""Workers, on this machine or others, that compute jobs of a search; any of them may be lost at any time."""
