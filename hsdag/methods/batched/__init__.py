"""Batching: DiviML's schedules for a batch of inputs that is divided over devices."""
