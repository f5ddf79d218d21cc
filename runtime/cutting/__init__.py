"""Cutting: from a placement to convex parts that run as tasks; knows no OpenVINO."""
