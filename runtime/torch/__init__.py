"""Placed graphs on torch devices: ops as functions of tensors, programs of tasks, and the executor that runs them."""
