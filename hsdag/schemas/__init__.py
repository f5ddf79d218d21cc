"""JSON schemas of files and answers."""
