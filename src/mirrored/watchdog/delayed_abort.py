"""Time to say why, before JAX's runtime aborts the process.

When worker 0 is gone, JAX's runtime ends the other processes by C's `abort` within milliseconds, with a message that
names nobody. A handler of that signal cannot safely be Python; but it may be C's `sleep`, which holds the aborting
thread up while another one tells which worker was lost, and ends the process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from pathlib import Path

from mirrored.watchdog.forked_children import in_forked_children


def delay_aborts() -> bool:
    """Has an abort of this process wait some seconds: as many as its signal's number, which is what `sleep` is given.

    Returns:
        Whether it does. Not on Windows, and not where somebody else handles that signal.
    """
    if sys.platform == "win32" or faulthandler.is_enabled() or signal.getsignal(signal.SIGABRT) != signal.SIG_DFL:
        return False
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    in_forked_children(lambda: library.signal(signal.SIGABRT, None))  # SIG_DFL: no reporter runs in a child
    return True


def is_aborting() -> bool:
    """Whether a thread is held up on its way to end this process. Linux only; elsewhere it is not known.

    While a handler runs, its signal is blocked in that thread, and hardly any thread blocks just this one otherwise.
    """
    mask = 1 << (signal.SIGABRT - 1)
    for thread in Path("/proc/self/task").glob("*/status"):
        try:
            lines = thread.read_text().splitlines()
        except OSError:  # it has ended
            continue
        if any(line.startswith("SigBlk:") and int(line.split()[1], 16) == mask for line in lines):
            return True
    return False
