"""Kernels: compiled functions."""

from __future__ import annotations

import pytest
from numba.core.caching import CacheImpl

from hsdag.ir.kernels import kernel


def one_more(x: int) -> int:
    return x + 1


def test_a_kernel_is_compiled_where_no_folder_can_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])  # as where all folders are read-only
    assert kernel(one_more)(1) == 2
