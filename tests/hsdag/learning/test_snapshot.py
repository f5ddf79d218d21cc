"""Stored searches: the same options go on, others are refused."""

from __future__ import annotations

import pytest

from hsdag.ir.errors import SearchError
from hsdag.learning.doppler.config import DopplerConfig
from hsdag.learning.snapshot import check_stored


def test_a_search_goes_on_whose_options_differ_by_what_makes_no_difference() -> None:
    stored = DopplerConfig(layers=2).as_dict() | {"messages_each_step": False}
    del stored["own_scores"]
    check_stored("doppler", DopplerConfig(layers=2), {"method": "doppler", "config": stored})
    for other in (DopplerConfig(layers=2, own_scores=False), DopplerConfig()):
        with pytest.raises(SearchError, match="other options of doppler"):
            check_stored("doppler", other, {"method": "doppler", "config": stored})
    with pytest.raises(SearchError, match="messages_each_step"):
        check_stored("doppler", DopplerConfig(), {"method": "doppler", "config": {"messages_each_step": True}})
