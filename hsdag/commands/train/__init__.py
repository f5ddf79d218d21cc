"""Train policies for reuse, as ``hsdag train`` does."""
