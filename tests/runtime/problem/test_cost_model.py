"""Cost models refuse what cannot be a cost."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.runtime.problem.cost_model import CostModel, CostSource


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        CostModel(np.array([[-1.0]]), np.zeros(1), np.zeros((1, 1)), np.ones((1, 1)), CostSource.FILE)
