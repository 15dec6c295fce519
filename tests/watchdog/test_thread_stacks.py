from __future__ import annotations

import threading

from mirrored.watchdog.fail_fast_exit import all_stacks


def test_every_thread_is_told_the_main_one_first():
    go = threading.Event()

    def wait_here() -> None:
        go.wait(10)

    threads = [threading.Thread(target=wait_here, name=name) for name in ("loader", "mirrored-hang-detection")]
    for thread in threads:
        thread.start()
    try:
        told = all_stacks()
    finally:
        go.set()
        for thread in threads:
            thread.join()
    assert told.startswith("thread MainThread:\n")
    assert "test_every_thread_is_told" in told.split("thread loader:")[0]
    assert "wait_here" in told.split("thread loader:")[1]
    assert "mirrored-hang-detection" not in told, "the watchdog's own threads are omitted"
