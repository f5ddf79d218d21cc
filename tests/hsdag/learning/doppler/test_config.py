"""DopplerConfig: options that do not go together."""

from __future__ import annotations

import pytest

from hsdag.ir.errors import OptionError
from hsdag.learning.doppler.config import DopplerConfig


def test_something_has_to_be_learned() -> None:
    with pytest.raises(OptionError, match="one of learns_order and learns_devices must be true"):
        DopplerConfig(learns_order=False, learns_devices=False)
