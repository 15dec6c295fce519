"""The stacks of all threads of this process."""

from __future__ import annotations

import sys
import threading
import traceback


def all_stacks() -> str:
    """Returns the stack of each thread, the main thread first, without the threads of mirrored itself."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if not str(names.get(ident, "")).startswith("mirrored-")
    ]
    return "\n".join(parts)
