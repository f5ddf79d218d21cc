"""Policies that come with a release, as files of ``hsdag train``: default.safetensors is the one that auto asks."""
