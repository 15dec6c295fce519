"""A worker is stopped after all have met, before JAX's own rendezvous: ``stopping.py WORKER before|listening``."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

import mirrored as mr
from mirrored.cluster import joining

who, when = int(sys.argv[1]), sys.argv[2]
meet = joining.meet


def meet_and_stop(process: Any, *arguments: Any) -> None:
    meet(process, *arguments)
    if process.index == who:
        listening = [socket.socket()]
        if when == "listening":
            host, _, port = process.coordinator.rpartition(":")
            listening = [socket.create_server((host, int(port)))]
        os.kill(os.getpid(), signal.SIGSTOP)
        listening[0].close()


joining._LEAST_SECONDS = 2.0  # type: ignore[misc]
joining.meet = meet_and_stop
try:
    mr.MultiWorkerMirroredStrategy()
except mr.errors.RendezvousError as error:
    print("RESULT", json.dumps(error.found), flush=True)
    os._exit(1)
