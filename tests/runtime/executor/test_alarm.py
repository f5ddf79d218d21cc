"""An alarm wakes who waits, and keeps one signal for who does not wait yet."""

from __future__ import annotations

import threading

from hsdag.runtime.executor.engine import Alarm

FOREVER_S = 60.0


def test_one_wait_ends_for_what_was_set_before_and_not_cleared() -> None:
    alarm = Alarm()
    for _ in range(3):
        alarm.set()
    alarm.wait(FOREVER_S)
    alarm.set()
    alarm.clear()
    waiting = threading.Thread(target=alarm.wait, args=(FOREVER_S,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    alarm.set()
    waiting.join(FOREVER_S / 2)
    assert not waiting.is_alive()
