"""Node features of a computation graph: structural, fractal, positional, shape, and schedule levels."""

from hsdag.features.columns import (
    degree_one_hot,
    in_degrees,
    op_type_mean,
    op_type_one_hot,
    op_type_vocabulary,
    out_degrees,
    output_shape,
    positional_encoding,
)
from hsdag.features.fractal import fractal_dimension
from hsdag.features.levels import b_levels, t_levels
from hsdag.features.matrix import GROUPS, STRUCTURE_GROUPS, FeatureMatrix, feature_matrix

__all__ = [
    "GROUPS",
    "STRUCTURE_GROUPS",
    "FeatureMatrix",
    "b_levels",
    "degree_one_hot",
    "feature_matrix",
    "fractal_dimension",
    "in_degrees",
    "op_type_mean",
    "op_type_one_hot",
    "op_type_vocabulary",
    "out_degrees",
    "output_shape",
    "positional_encoding",
    "t_levels",
]
