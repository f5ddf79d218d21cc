"""Policy files: what is no policy is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hsdag.base.errors import FileFormatError
from hsdag.methods.policy_file import FORMAT, VERSION, read_policy, write_policy

CARD = f'{{"format": "{FORMAT}", "version": {VERSION}}}'


@pytest.mark.parametrize("card", ["[]", "null", CARD.replace(f": {VERSION}", ": 99"), CARD.replace(FORMAT, "x")])
def test_a_card_of_another_kind_is_refused(tmp_path: Path, card: str) -> None:
    path = tmp_path / "p.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"card": card})
    with pytest.raises(FileFormatError, match=r"is not a policy file \(its card says .*\); write one with"):
        read_policy(path, "rules")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "p.safetensors"
    write_policy(path, {"good": np.ones(2), "bad": np.array([1.0, value])}, {})
    with pytest.raises(FileFormatError, match="the weights bad are not finite"):
        read_policy(path, "rules")
