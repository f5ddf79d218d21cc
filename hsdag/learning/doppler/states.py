"""States: features of ops that say what is placed at a step, for messages in every step (DOPPLER, App. G.3).

Legend: B episodes, N ops, D devices, K states, S features of an op's state.
"""

from __future__ import annotations

import numpy as np
import torch

from hsdag.ir.graph import IntArray
from hsdag.learning.decoding_kernel import START
from hsdag.learning.decoding_records import Episodes
from hsdag.runtime.problems.tables import Tables, lengths_of

STATE_FEATURES = (
    "whether the op is placed",
    "whether it is a candidate",
    "its start",
    "its end",
    "work on its device",
    "end of the last op on its device",
)
"""The last four are 0 until the op is placed, in units of the length of a balanced schedule, as dynamic features of
devices are (App. E.2). They tell devices apart by what these do, so that a network reads any number of them."""
IS_PLACED, IS_CANDIDATE = 0, 1


class States:
    """What is placed before each of the first ``num_steps`` + 1 steps of episodes, whose later steps are not read."""

    def __init__(self, tables: Tables, found: Episodes, num_steps: int) -> None:
        b, n = found.order.shape
        self._ready, order, home = found.ready, found.order[:, :num_steps], found.home[:, :num_steps]
        took = tables.time_s[order, home] / lengths_of(tables)[0]
        start = np.take_along_axis(found.features[:, :num_steps, :, START], home[..., None], axis=2)[..., 0]
        on = home[..., None] == np.arange(tables.time_s.shape[1])  # [B, num_steps, D]
        before = ((0, 0), (1, 0), (0, 0))
        work = np.pad((on * took[..., None]).cumsum(axis=1), before)
        last = np.maximum.accumulate(np.pad(on * (start + took)[..., None], before), axis=1)
        self._of_devices = np.stack([work, last], axis=-1).astype(np.float32)  # [B, num_steps + 1, D, 2]
        self._rank, self.home = np.full((b, n), n), np.zeros((b, n), np.int64)
        self._span = np.zeros((b, n, 2), np.float32)
        rows = np.arange(b)[:, None]
        self._rank[rows, order], self.home[rows, order] = np.arange(num_steps), home
        self._span[rows, order] = np.stack([start, start + took], axis=-1)

    def at(self, episode: IntArray, step: IntArray) -> torch.Tensor:
        """[K, N, S] the states of episodes [K] before steps [K]."""
        placed = self._rank[episode] < step[:, None]
        candidate = (self._ready[episode] <= step[:, None]) & ~placed
        of_device = self._of_devices[episode[:, None], step[:, None], self.home[episode]]
        known = np.concatenate([self._span[episode], of_device], axis=-1) * placed[..., None]
        return torch.from_numpy(np.concatenate([np.stack([placed, candidate], axis=-1), known], axis=-1)).float()
