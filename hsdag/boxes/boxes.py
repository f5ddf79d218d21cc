"""Boxes: the machines of a pool that are of the kind of this one, and what becomes of them."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait

from hsdag.boxes.jobs import Describe, Measure
from hsdag.boxes.machine import Machine
from hsdag.boxes.site import Site
from hsdag.evaluators.bench import Relative
from hsdag.fleet.job import Findings, JobLost, Shared
from hsdag.fleet.pool import LOOK_EVERY_S, Host, Pool
from hsdag.ir.errors import HsdagError
from hsdag.ir.processes import WorkerDefect
from hsdag.runtime.measuring.candidate import Candidate

MOST_LOSSES = 2
"""Workers that a box may lose before it measures no more."""

Failures = JobLost, HsdagError, WorkerDefect


class Boxes:
    """Other machines that measure, one candidate at a time each; ``hosts`` has one worker of each machine.

    ``here`` is what this machine is called. ``say`` hears of those that are lost.
    """

    def __init__(self, pool: Pool, site: Site, hosts: list[Host], say: Callable[[str], None]) -> None:
        self.hosts = hosts
        self.here = f"{platform.node()} (this machine)"
        self._pool, self._shared, self._say = pool, Shared.of(site), say
        self._losses: Counter[str] = Counter()

    def begin(self) -> None:
        """Forget that what was computed before is over."""
        self._pool.begin()

    def abandon(self) -> None:
        """Have what is measured now end within seconds."""
        self._pool.exchange(Findings(is_over=True))

    def measure(self, host: Host, candidate: Candidate, reference: Candidate, best_ratio: float) -> Future[Relative]:
        """Have a candidate measured on a box."""
        return self._pool.submit(Measure(candidate, reference, best_ratio, (self._shared,)), host)

    def answer(self, host: Host, future: Future[Relative]) -> Relative | None:
        """What a box has measured; None where that has to be measured elsewhere, since the box is unfit."""
        try:
            relative = future.result()
        except Failures as failure:
            self._losses[host.name] += 1
            is_first = isinstance(failure, JobLost) and self._losses[host.name] < MOST_LOSSES
            self._lose(host, str(failure), is_again=is_first and host in self._pool.hosts)
            return None
        if relative.is_unfit:
            self._lose(host, f"{relative.failure}")
            return None
        return relative

    def _lose(self, host: Host, reason: str, *, is_again: bool = False) -> None:
        if not is_again and host in self.hosts:
            self.hosts.remove(host)
        how = "is lost" if is_again else "measures no more"
        self._say(f"{host.name} {how} ({reason}); what it had to measure is measured on another machine")


def find_boxes(
    pool: Pool,
    site: Site,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    describe: type[Describe] = Describe,
) -> Boxes:
    """The machines of a pool whose kind is that of this one, which is none of them; of others it is said what differs.

    Workers on one machine are one box, however many there are. Those that have not answered when ``should_stop`` says
    so take no part.
    """
    devices = site.packed.setup.devices
    here, hosts = Machine.here(devices), list[Host]()
    first = {host.name: host for host in reversed(pool.hosts) if not host.is_here}
    asked = [(host, pool.submit(describe(devices), host)) for host in reversed(first.values())]
    seen = {here.id}
    for host, future in asked:
        try:
            while not (wait([future], LOOK_EVERY_S).done or should_stop()):
                pass
            machine = future.result(0)
        except (*Failures, TimeoutError) as failure:
            say(f"{host.name} takes no part in measuring: {failure}")
            continue
        differences = here.differences(machine)
        if machine.id in seen:
            continue
        if differences:
            say(f"{host.name} takes no part in measuring: {'; '.join(differences)}")
            continue
        seen.add(machine.id)
        hosts.append(host)
    return Boxes(pool, site, hosts, say)
