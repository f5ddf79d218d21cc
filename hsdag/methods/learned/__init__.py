"""Placement methods that train a policy by reinforcement learning."""
