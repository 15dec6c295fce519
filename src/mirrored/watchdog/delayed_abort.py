"""Delays the abort by JAX's runtime until the watchdog has named the lost worker.

When worker 0 is lost, JAX's runtime ends the other processes by C's `abort` within milliseconds, with a message that
names no worker. A handler of SIGABRT cannot safely run Python. It can be C's `sleep`, which blocks the aborting thread
while another thread reports the lost worker and ends the process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from pathlib import Path

from mirrored.watchdog.forked_children import in_forked_children


def delay_aborts() -> bool:
    """Makes an abort of this process sleep before it takes effect.

    C calls a handler with the signal's number, so that `sleep` waits SIGABRT (6 on Linux) seconds.

    Returns:
        Whether the delay is installed. It is not on Windows, nor where SIGABRT already has a handler.
    """
    if sys.platform == "win32" or faulthandler.is_enabled() or signal.getsignal(signal.SIGABRT) != signal.SIG_DFL:
        return False
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    in_forked_children(lambda: library.signal(signal.SIGABRT, None))  # SIG_DFL: no thread reports in a child
    return True


def is_aborting() -> bool:
    """Returns whether a thread of this process is about to abort it. Linux only; False elsewhere.

    While a handler runs, the kernel blocks its signal in that thread. Hardly any thread blocks SIGABRT alone otherwise.
    """
    mask = 1 << (signal.SIGABRT - 1)
    for thread in Path("/proc/self/task").glob("*/status"):
        try:
            lines = thread.read_text().splitlines()
        except OSError:  # the thread has ended
            continue
        if any(line.startswith("SigBlk:") and int(line.split()[1], 16) == mask for line in lines):
            return True
    return False
