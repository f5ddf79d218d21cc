"""Local search: placements improved by small random changes."""
