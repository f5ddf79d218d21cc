"""An alarm wakes who waits, and keeps one signal for who does not wait yet."""

from __future__ import annotations

import threading

from hsdag.runtime.executor.engine import Alarm

FOREVER_S = 60.0


def waits(alarm: Alarm, timeout_s: float) -> threading.Thread:
    thread = threading.Thread(target=alarm.wait, args=(timeout_s,), daemon=True)
    thread.start()
    return thread


def test_setting_wakes_who_waits() -> None:
    alarm = Alarm()
    waiting = waits(alarm, FOREVER_S)
    alarm.set()
    waiting.join(FOREVER_S / 2)
    assert not waiting.is_alive()


def test_what_was_set_before_ends_one_wait_however_often_it_was_set() -> None:
    alarm = Alarm()
    for _ in range(3):
        alarm.set()
    alarm.wait(FOREVER_S)
    waiting = waits(alarm, FOREVER_S)
    waiting.join(0.05)
    assert waiting.is_alive()
    alarm.set()
    waiting.join(FOREVER_S / 2)


def test_what_was_cleared_ends_no_wait() -> None:
    alarm = Alarm()
    alarm.set()
    alarm.clear()
    waiting = waits(alarm, FOREVER_S)
    waiting.join(0.05)
    assert waiting.is_alive()
    alarm.set()
    waiting.join(FOREVER_S / 2)
