"""Policies that come with a release: what was learned on problems of many families, for problems not seen before."""

from pathlib import Path

SHIPPED = Path(__file__).with_name("default.safetensors")
"""The rules that ``--method rules`` and ``auto`` use; their card says how 'hsdag train' made them."""
