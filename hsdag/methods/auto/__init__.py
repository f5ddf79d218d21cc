"""Run several methods under one budget."""
