"""The meeting of the launchers of several machines, at an address of machine 0.

Every launcher, that of machine 0 included, keeps one connection to the server there and sends lines of JSON. A start
begins when all have said hello; a failure of one is passed on to all; a connection that breaks is a failure.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from mirrored.errors import RendezvousError
from mirrored.launch.job import Job
from mirrored.launch.meeting import Meeting
from mirrored.launch.ports import free_ports

_PAUSE_SECONDS: Final = 0.05
_CONNECT_SECONDS: Final = 5.0


class Machines(Meeting):
    """One launcher's part in the meeting.

    Args:
        job: What is run; its `coordinator` is where they meet.

    Raises:
        RendezvousError: On machine 0: the port is taken.
    """

    def __init__(self, job: Job) -> None:
        assert job.coordinator is not None
        self._job = job
        host, _, port = job.coordinator.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._server = _Server(self._port, job.nodes) if job.node_rank == 0 else None
        self._connection: socket.socket | None = None
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()

    def meet(self, restart: int, is_interrupted: Callable[[], bool]) -> list[str] | None:
        """Says hello and waits for all others.

        Raises:
            RendezvousError: Some did not come in time: they are named.
        """
        self._hang_up()  # each start has connections of its own
        end = time.monotonic() + self._job.meeting_seconds
        with free_ports(self._job.workers) as ports:
            hello: dict[str, Any] = {
                "hello": self._job.node_rank,
                "nodes": self._job.nodes,
                "workers": self._job.workers,
            }
            hello |= {"ports": ports, "name": socket.gethostname(), "restart": restart}
            waiting: list[int] = []
            while time.monotonic() < end:
                if is_interrupted():
                    return None
                if self._connection is None and not self._connect(hello):
                    time.sleep(_PAUSE_SECONDS)
                    continue
                message = self._next()
                if "start" in message:
                    return self._addresses(message["start"])
                if "refused" in message:
                    raise self._error(str(message["refused"]), "all launchers are started with the same numbers")
                waiting = message.get("waiting", waiting)
        raise self._missing(waiting)

    def news(self) -> str | None:
        """Why another machine's workers were ended, if they were."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._news.get_nowait()
                if "stop" in message:
                    return str(message["stop"])
        return None

    def tell(self, reason: str) -> None:
        """Has all others end their workers."""
        self._send({"stop": f"machine {self._job.node_rank} ({socket.gethostname()}): {reason}"})
        self._hang_up()

    def wait_for_the_others(self, is_interrupted: Callable[[], bool]) -> str | None:
        """Waits for the machines whose workers are not yet done."""
        self._send({"done": self._job.node_rank})
        while not is_interrupted():
            message = self._next()
            if "all_done" in message:
                return None
            if "stop" in message:
                self._hang_up()
                return str(message["stop"])
        return "interrupted"

    def close(self) -> None:
        """Lets go of the connection, and of the server on machine 0."""
        self._hang_up()
        if self._server is not None:
            self._server.close()

    def _next(self) -> dict[str, Any]:
        try:
            return self._news.get(timeout=_PAUSE_SECONDS)
        except queue.Empty:
            return {}

    def _connect(self, hello: dict[str, Any]) -> bool:
        try:
            connection = socket.create_connection((self._host, self._port), timeout=_CONNECT_SECONDS)
        except OSError:
            return False
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection, self._news = connection, queue.Queue()
        threading.Thread(target=self._read, args=(connection, self._news), daemon=True).start()
        self._send(hello)
        return True

    def _read(self, connection: socket.socket, news: queue.Queue[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                news.put(json.loads(line))
        news.put({"stop": f"the launcher of machine 0 ({self._job.coordinator}) is gone"})
        if self._connection is connection:
            self._connection = None

    def _send(self, message: dict[str, Any]) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(message).encode() + b"\n")

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _addresses(self, machines: list[dict[str, Any]]) -> list[str]:
        """Machine 0 by the name that all reached it by, the others as machine 0 sees them."""
        hosts = [self._host if rank == 0 else str(machine["host"]) for rank, machine in enumerate(machines)]
        named = [f"[{host}]" if ":" in host else host for host in hosts]
        return [f"{host}:{port}" for host, machine in zip(named, machines, strict=True) for port in machine["ports"]]

    def _missing(self, waiting: list[int]) -> RendezvousError:
        if self._connection is None:
            who = f"nobody answers at {self._job.coordinator}"
        else:
            who = f"machines {', '.join(map(str, waiting))} have not come"
        return self._error(
            f"{who} after {self._job.meeting_seconds:g} s",
            f"all {self._job.nodes} launchers meet at the coordinator before the workers start",
        )

    def _error(self, found: str, rule: str) -> RendezvousError:
        return RendezvousError(
            f"mirrored run on machine {self._job.node_rank}",
            found=found,
            rule=rule,
            remedy="start `mirrored run` on every machine with the same --nodes, --workers and --coordinator and its "
            "own --node-rank; see that the port of machine 0 can be reached from the others",
        )


class _Server:
    """Passes on what the launchers say; one thread per connection."""

    def __init__(self, port: int, nodes: int) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._here: dict[int, tuple[dict[str, Any], Any]] = {}
        self._done: set[int] = set()
        self._started = False
        meeting = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                meeting._serve(self)

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        try:
            self._tcp = socketserver.ThreadingTCPServer(("", port), Handler, bind_and_activate=True)
        except OSError as error:
            raise RendezvousError(
                "mirrored run on machine 0",
                found=f"port {port} of the coordinator cannot be opened: {error}",
                rule="the launchers meet at this port of machine 0",
                remedy="give --coordinator another port, or end the program that has this one",
            ) from error
        self._tcp.daemon_threads = True
        threading.Thread(target=self._tcp.serve_forever, args=(_PAUSE_SECONDS,), daemon=True).start()

    def close(self) -> None:
        self._tcp.shutdown()
        self._tcp.server_close()

    def _serve(self, handler: Any) -> None:
        rank: int | None = None
        with contextlib.suppress(OSError):
            for line in handler.rfile:
                message = json.loads(line)
                if "hello" in message:
                    rank = int(message["hello"])
                self._take(message, rank, handler)
        with self._lock:
            mine = rank is not None and rank in self._here and self._here[rank][1] is handler
            if mine and rank is not None:
                name = self._here.pop(rank)[0]["name"]
                if self._started and rank not in self._done:
                    self._stop(f"the launcher of machine {rank} ({name}) is gone")

    def _take(self, message: dict[str, Any], rank: int | None, handler: Any) -> None:
        with self._lock:
            if "hello" in message and rank is not None:
                self._welcome(message, rank, handler)
            elif "stop" in message and rank in self._here:
                self._here.pop(rank)
                self._stop(message["stop"])
            elif "done" in message and rank is not None:
                self._done.add(rank)
                if len(self._done) == self._nodes:
                    self._broadcast({"all_done": True})

    def _welcome(self, message: dict[str, Any], rank: int, handler: Any) -> None:
        wrong = self._mismatch(message, rank)
        if wrong:
            _tell(handler, {"refused": wrong})
            return
        self._here[rank] = ({**message, "host": handler.client_address[0]}, handler)
        missing = [one for one in range(self._nodes) if one not in self._here]
        if missing:
            self._broadcast({"waiting": missing})
            return
        self._started, self._done = True, set()
        self._broadcast({"start": [self._here[one][0] for one in range(self._nodes)]})

    def _mismatch(self, message: dict[str, Any], rank: int) -> str | None:
        if message["nodes"] != self._nodes:
            return f"machine {rank} says --nodes {message['nodes']}, machine 0 says {self._nodes}"
        if not 0 <= rank < self._nodes or rank in self._here:
            return f"machine {rank} ({message['name']}) is there already, or is not one of {self._nodes}"
        return None

    def _stop(self, reason: str) -> None:
        """Ends this start: all say hello again."""
        self._started = False
        here, self._here = self._here, {}
        for _, handler in here.values():
            _tell(handler, {"stop": reason})

    def _broadcast(self, message: dict[str, Any]) -> None:
        for _, handler in self._here.values():
            _tell(handler, message)


def _tell(handler: Any, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, ValueError):
        handler.wfile.write(json.dumps(message).encode() + b"\n")
