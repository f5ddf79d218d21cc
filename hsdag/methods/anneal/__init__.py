"""Methods of local search, which improve a plan by small random changes."""
