"""An examiner in which questions go wrong for real, as the command line says: "FAULT QUESTION [PART OF ITS TEXT]"..."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from hsdag.ir.processes import main
from hsdag.runtime.measuring.examiner import Examiner


class FaultyExaminer:
    """Crashes or hangs over some questions; a real examiner over all others."""

    def __init__(self, setup: Any) -> None:
        self.examiner = Examiner(setup)

    def handle(self, request: Any) -> Any:
        """The answer, if there is one."""
        for fault, question, *part in (argument.split() for argument in sys.argv[1:]):
            if type(request).__name__ == question and all(word in repr(request) for word in part):
                if fault == "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(3600)
        return self.examiner.handle(request)


if __name__ == "__main__":
    main(lambda setup, _: FaultyExaminer(setup))
