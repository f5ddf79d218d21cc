"""Run searches: their options, driver and results, and the solving and simulating of problem files."""
