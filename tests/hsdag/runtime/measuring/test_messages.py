"""Candidates as they are named to a measuring process."""

from __future__ import annotations

from hsdag.ir.shards.regions import Region
from hsdag.runtime.measuring.messages import Candidate


def test_a_candidate_has_a_part_for_each_device_and_one_more_for_each_region_on_it() -> None:
    region = Region("rows", (1, 2), (0, 0), {0: (0, 4), 1: (4, 8)})
    split = Candidate.side_by_side(["A", "B", "A"], ["A", "B"])
    divided = Candidate.sharded([region, region], [0, 1, 1], ["A", "B"])
    assert [Candidate("A").num_parts, split.num_parts, divided.num_parts] == [1, 2, 2 * (1 + 2)]
