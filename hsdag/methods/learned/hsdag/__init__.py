"""HSDAG: the graph parsing network, the policy over groups, and its training (paper §2)."""
