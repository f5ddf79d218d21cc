"""hsdag train: policies for reuse."""
