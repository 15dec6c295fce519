"""Ends what is left when the launcher itself is killed.

Started as a file of its own, without mirrored: ``python -I -S reaper.py``. It reads ``+GROUP`` and ``-GROUP`` from its
standard input, and when that ends, as it does whatever becomes of the launcher, it kills the process groups that are
left. The workers also ask the kernel to go when the launcher goes; this is for what they have started themselves.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Keeps the list until the launcher is gone."""
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
