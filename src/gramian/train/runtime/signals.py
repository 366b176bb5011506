"""Ctrl-C and SIGTERM: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from gramian.explained import Explained


class Stopped(Explained, KeyboardInterrupt):
    """Training was stopped by a signal, after a checkpoint was written.

    A KeyboardInterrupt, so that no ``except Exception`` on the way up goes on regardless.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """128 + the signal's number: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal_number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}"


class StopSignals:
    """Within this context the first signal is only noted; a second one interrupts at once.

    Args:
        insist: whether it does; False for work that hears signals by itself, and ends soon.
    """

    def __init__(self, insist: bool = True) -> None:
        self.insist = insist
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and self.insist:
            raise KeyboardInterrupt
        self.received = number
