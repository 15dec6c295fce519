"""A helper process that kills the workers' child processes if the launcher itself is killed.

It runs as a file of its own, without mirrored: ``python -I -S reaper.py``. It reads ``+GROUP`` and ``-GROUP`` from its
standard input. The kernel closes that pipe however the launcher ends; the reaper then kills the groups that are left.
The workers also ask the kernel to kill them with the launcher; the reaper is for the processes that they have started.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Reads process group ids from the launcher; when the launcher ends, kills the groups that still exist."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
