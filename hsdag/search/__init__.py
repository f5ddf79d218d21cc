"""Searches: their options and their course; problem files solved and simulated."""
