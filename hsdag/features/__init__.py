"""Node features of a computation graph: op types, degrees, fractal dimension, places, output shapes."""

from hsdag.features.matrix import GROUPS, STRUCTURE_GROUPS, FeatureMatrix, feature_matrix

__all__ = ["GROUPS", "STRUCTURE_GROUPS", "FeatureMatrix", "feature_matrix"]
