"""Portfolios: several methods under one budget."""
