"""CompiledSubmodels: the submodels of a cut, each compiled on its device, and again where an inference of it hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hsdag.ir.errors import ExecutionError


class CompiledSubmodels:
    """What ``compile_submodel`` makes of subgraphs 0 to ``count - 1``. Any thread may call any method.

    An inference that hangs blocks the others of its compiled model, so ``renew`` has the subgraph compiled once more,
    in a thread of its own; whoever wants the subgraph waits for that, and nobody starts a second compilation meanwhile.
    """

    def __init__(self, compile_submodel: Callable[[int], Any], count: int) -> None:
        self._compile = compile_submodel
        self._compiled = [compile_submodel(s) for s in range(count)]
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def renew(self, s: int) -> Future[Any]:
        """Begin to compile subgraph s again."""
        future: Future[Any] = Future()
        with self._lock:
            self._pending[s] = future
        try:
            threading.Thread(target=self._fill, args=(s, future), name=f"hsdag-compile-{s}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread to give
            future.set_exception(error)
        return future

    def _fill(self, s: int, future: Future[Any]) -> None:
        try:
            compiled = self._compile(s)
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is the failure of who waits
            future.set_exception(error)
            return
        with self._lock:
            if self._pending.get(s) is future and not self._is_closed:
                self._compiled[s] = compiled
                del self._pending[s]
        future.set_result(compiled)

    def get(self, s: int) -> Any:
        """Subgraph s compiled; waits where it is being compiled, once more where that failed before.

        Raises what the compiler did.
        """
        with self._lock:
            future = self._pending.get(s)
            if future is None:
                return self._compiled[s]
        if future.done() and future.exception() is not None:
            future = self.renew(s)
        return future.result()

    def now(self) -> list[Any]:
        """[S] without waiting: None where a subgraph is being compiled."""
        with self._lock:
            return [None if s in self._pending else compiled for s, compiled in enumerate(self._compiled)]

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing is being compiled any more. Raises ExecutionError after ``timeout_s``."""
        for future in list(self._pending.values()):
            try:
                future.exception(timeout_s)
            except TimeoutError as error:
                reason = f"a device has spent {timeout_s:g} s on compiling a part that hung; it may need a restart"
                raise ExecutionError(reason) from error

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._is_closed = True
            self._compiled.clear()
