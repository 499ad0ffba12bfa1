"""What a signal's handler sets, and a loop in the main thread waits for."""

from __future__ import annotations

import time

STEP_SECONDS = 0.1


class StopFlag:
    """A flag without a lock.

    ``threading.Event`` cannot be had here: its ``wait`` holds a lock for a moment, again and again,
    and its ``set`` takes the same one. Python runs a signal's handler in the main thread, between
    any two steps of what it does; in the middle of such a moment the handler would wait for its
    own thread, for ever, and the process would never stop.
    """

    def __init__(self) -> None:
        self._told = False

    def set(self) -> None:
        """Tell; from a handler, or from any thread."""
        self._told = True

    def is_set(self) -> bool:
        return self._told

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is set (seen within 0.1 s); whether it is."""
        end = time.monotonic() + seconds
        while not self._told and (left := end - time.monotonic()) > 0:
            time.sleep(min(STEP_SECONDS, left))
        return self._told
