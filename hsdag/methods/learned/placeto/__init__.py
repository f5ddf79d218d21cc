"""Placeto: a policy that improves a placement unit by unit (Addanki et al. 2019)."""
