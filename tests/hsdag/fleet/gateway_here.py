"""A gateway to no cluster: two slots, on which it computes what comes, in the way that its argument says."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.connection import Connection

from hsdag.fleet.job import Findings
from hsdag.fleet.messages import Abandon, Begin, Connected, Ended, Found, Lost, Refused
from hsdag.runtime.problems.bounds import Bound


def main(how: str) -> None:
    """``computes`` jobs, ``waits`` until it is told to abandon them, ``finds`` a bound and waits for a larger one, or
    ends at the first job, or ``refuses``."""
    connection, values = Connection(os.dup(0)), dict[str, object]()
    if how == "refuses":
        connection.send(Refused("it is shut"))
        return
    connection.send(Connected(() if how == "empty" else ("a", "b")))
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if isinstance(message, Begin) and how == "computes":
            values |= {value.key: pickle.loads(value.content) for value in message.values}
            needed = tuple(values[shared.key] for shared in message.job.needs)
            connection.send(Ended(message.slot, (message.job.run(needed, lambda own: own), None)))
        elif isinstance(message, Begin) and how == "finds":
            connection.send(Found(message.slot, Findings(bound=Bound(1.0, "a test"))))
        elif isinstance(message, Found) and message.findings.value < 5.0:
            connection.send(Ended(message.slot, (message.findings.value, None)))
        elif isinstance(message, Abandon):
            connection.send(Lost(message.slot, "abandoned", is_gone=False))
        elif isinstance(message, Begin) and how == "ends":
            return


if __name__ == "__main__":
    main(sys.argv[1])
