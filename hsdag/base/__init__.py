"""Hold what every other folder stands on: errors, files, processes, compiled functions."""
