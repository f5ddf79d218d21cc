"""Node features of a computation graph, which learned methods see."""

from hsdag.features.matrix import GROUPS, STRUCTURE_GROUPS, FeatureMatrix, feature_matrix

__all__ = ["GROUPS", "STRUCTURE_GROUPS", "FeatureMatrix", "feature_matrix"]
