"""Stored searches: the same options go on, others are refused."""

from __future__ import annotations

import pytest

from hsdag.ir.errors import SearchError
from hsdag.learning.doppler.config import DopplerConfig
from hsdag.learning.snapshot import check_stored


def test_a_search_goes_on_that_is_older_than_an_option_unless_the_option_is_changed() -> None:
    stored = DopplerConfig(layers=2).as_dict()
    del stored["messages_each_step"]
    check_stored("doppler", DopplerConfig(layers=2), {"method": "doppler", "config": stored})
    for other in (DopplerConfig(layers=2, messages_each_step=True), DopplerConfig()):
        with pytest.raises(SearchError, match="other options of doppler"):
            check_stored("doppler", other, {"method": "doppler", "config": stored})
