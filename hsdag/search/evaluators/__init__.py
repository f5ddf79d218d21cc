"""Score plans: simulated, measured or both; record the scores."""
