"""Started between the supervisor and a child: ties the child's life to the supervisor's.

Run as ``python -I -S leash.py SUPERVISOR_PID[:SIGNAL] COMMAND...``; the signal is what the child
gets when the supervisor dies, SIGTERM if none is named. It imports no part of Penstock, so that
it costs milliseconds, and then becomes the command. Doing this between fork and exec instead would
run Python in a forked copy of a process that may have threads.
"""

from __future__ import annotations

import os
import signal
import sys

NOT_FOUND = 127  # as shells have it
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Ask for a signal when the supervisor dies, then become the command."""
    parent, _, number = arguments[0].partition(":")
    supervisor, ending, command = int(parent), int(number or signal.SIGTERM), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ending, 0, 0, 0) != 0:
            sys.stderr.write("the child would outlive a killed supervisor: prctl failed\n")
    if os.getppid() != supervisor:
        return 1  # it died before we asked: nobody would stop us
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
    return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
