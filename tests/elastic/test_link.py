"""A worker's end of the protocol: commands of the launcher that arrive in quick succession."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirrored.elastic import link as module
from mirrored.elastic.link import WORD, Link, WorkersChanged


class Channel:
    """A connection to a launcher that answers each arrival at once with prepared commands."""

    def __init__(self) -> None:
        self.commands: list[list[dict[str, Any]]] = []
        self.sent: list[dict[str, Any]] = []

    def receive_by(self, receive: Callable[[str], object]) -> None:
        self._receive = receive

    def tell(self, *commands: dict[str, Any]) -> None:
        for command in commands:
            self._receive(f"{WORD} {json.dumps(command)}")

    def send(self, line: str) -> None:
        self.sent.append(json.loads(line.partition(" ")[2]))
        if self.sent[-1]["kind"] == "arrived":
            self.tell(*self.commands.pop(0))


def begin(epoch: int) -> dict[str, Any]:
    more = {"rank": 0, "addresses": ["a:1", "b:1"], "coordinator": "a:1", "step": None, "source": 0, "receivers": []}
    return {"kind": "begin", "epoch": epoch, **more}


def leave(epoch: int) -> dict[str, Any]:
    return {"kind": "leave", "epoch": epoch, "ports": []}


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the thread that interrupts the waits of the main thread does so."""
    released = threading.Event()
    monkeypatch.setattr(module.recovery, "release_waiters", lambda *_: released.set())
    return released


@pytest.fixture
def link(channel: Channel, released: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    def start(*threads: threading.Thread) -> None:
        for one in threads:
            if "interrupts" in one.name:
                one.start()

    monkeypatch.setattr(module, "start", start)
    link = Link(channel, 30.0)  # type: ignore[arg-type]
    yield link
    link._is_inside = False  # its thread waits from now on


def test_a_command_to_leave_an_epoch_that_the_main_thread_has_not_entered_yet_is_kept(
    link: Link, channel: Channel, released: threading.Event
) -> None:
    channel.commands = [[begin(1), leave(1)], [begin(2)]]
    assert link.arrive([]).epoch == 1
    assert released.wait(5)
    with pytest.raises(WorkersChanged):
        link.check()
    assert link.arrive([]).epoch == 2
    link.check()


def test_a_command_to_leave_an_epoch_that_was_left_has_no_effect(link: Link, channel: Channel) -> None:
    channel.commands = [[begin(1)], [leave(1), begin(2)]]
    link.arrive([])
    link.check()
    assert link.arrive([]).epoch == 2
    link.check()
    channel.tell(leave(1))
    link.check()
    channel.tell(leave(2))
    with pytest.raises(WorkersChanged):
        link.check()
