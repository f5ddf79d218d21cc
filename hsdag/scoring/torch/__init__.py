"""Problem files on torch devices: their ops as functions of tensors, and the worker that measures placements."""
