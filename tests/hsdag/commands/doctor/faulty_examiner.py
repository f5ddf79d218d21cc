"""A measuring process in which questions go wrong for real, as the command line says: "FAULT QUESTION [PART]"..."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from hsdag.base.processes import main
from hsdag.runtime.measuring.worker import Worker


class FaultyExaminer(Worker):
    """Crashes or hangs over some questions."""

    def handle(self, request: Any) -> Any:
        """The answer, if there is one."""
        for fault, question, *part in (argument.split() for argument in sys.argv[1:]):
            if request.name == question and all(word in repr(request) for word in part):
                if fault == "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(3600)
        return super().handle(request)


if __name__ == "__main__":
    main(lambda setup, channel: FaultyExaminer(setup, channel.tell))
