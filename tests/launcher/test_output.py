from __future__ import annotations

import io
import os
import threading
from types import SimpleNamespace

import pytest

from mirrored.errors import ArgumentError
from mirrored.launcher import output as outputs
from mirrored.launcher import worker as workers
from mirrored.launcher.job import Job
from mirrored.launcher.output import Lines, Output


def test_lines_have_the_name_of_their_worker(tmp_path):
    screen, errors = io.BytesIO(), io.BytesIO()
    output = Output(screen, errors, directory=tmp_path / "logs")
    output.write(0, b"one\ntwo\n")
    output.write(1, b"wrong\n", is_error=True)
    output.say("worker 1 has failed")
    output.close()
    assert screen.getvalue() == b"[worker 0] one\n[worker 0] two\n"
    assert errors.getvalue() == b"[worker 1] wrong\n[mirrored] worker 1 has failed\n"
    assert (tmp_path / "logs" / "worker-0.log").read_bytes() == b"one\ntwo\n[mirrored] worker 1 has failed\n"
    assert (tmp_path / "logs" / "worker-1.log").read_bytes() == b"wrong\n[mirrored] worker 1 has failed\n"


def test_names_are_coloured_on_a_terminal():
    screen = io.BytesIO()
    output = Output(screen, screen, color=True)
    output.write(0, b"one\n")
    output.close()
    assert screen.getvalue() == b"\x1b[36m[worker 0] \x1b[0mone\n"


def test_a_pipe_is_cut_into_whole_lines():
    reading, writing = os.pipe()
    lines = Lines(reading)
    os.write(writing, b"half a li")
    assert lines.read() == b""
    os.write(writing, b"ne\n10%\r20%\rrest")
    assert lines.read() == b"half a line\n10%\r20%\r"
    os.close(writing)
    assert lines.read() == b"rest\n"
    assert not lines.open
    os.close(reading)


def test_the_incomplete_last_line_of_a_pipe_that_another_process_holds_is_shown():
    reading, writing = os.pipe()
    lines = Lines(reading)
    os.write(writing, b"whole line\nfinal accuracy")
    assert (lines.read(), lines.rest(), lines.rest()) == (b"whole line\n", b"final accuracy\n", b"")
    os.close(writing)
    os.close(reading)


def test_the_last_line_of_a_worker_whose_daemon_holds_its_pipes_is_shown(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'final accuracy 0.97'\nsleep 0.1\n")
    python.chmod(0o700)
    monkeypatch.setattr(workers, "sys", SimpleNamespace(executable=str(python)))
    screen = io.BytesIO()
    output = Output(screen, None)
    worker = workers.Worker(Job(program="train.py"), 0, dict(os.environ))
    held = os.open(f"/proc/{worker.process.pid}/fd/1", os.O_WRONLY)  # the daemon's: the pipe does not end
    worker.process.wait()
    worker.end(output)
    output.close(2)
    os.close(held)
    assert screen.getvalue() == b"[worker 0] final accuracy 0.97\n"


def test_nobody_reads_any_more():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as screen:
        errors = io.BytesIO()
        output = Output(screen, errors)
        for _ in range(3):
            output.write(0, b"one\n")
        output.close()
    assert errors.getvalue() == b"", "that is no mishap: head has seen enough"


def test_a_long_line_takes_time_in_proportion(monkeypatch):
    reading, writing = os.pipe()
    lines = Lines(reading)
    joined = 0
    real = os.read

    def read(descriptor: int, count: int) -> bytes:
        nonlocal joined
        joined += 1
        return real(descriptor, count)

    monkeypatch.setattr(os, "read", read)
    size, found = 40 << 20, []
    writer = threading.Thread(target=lambda: [os.write(writing, b"x" * (1 << 16)) for _ in range(size >> 16)])
    writer.start()
    while writer.is_alive() or lines._rest_bytes < size:
        found.append(lines.read())
        assert len(lines._rest) <= joined, "pieces, not copies"
    assert not any(found)
    os.write(writing, b"\n")
    assert lines.read() == b"x" * size + b"\n"
    os.close(writing)
    os.close(reading)


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(outputs, "_LINE_BYTES", 1000)
    reading, writing = os.pipe()
    lines = Lines(reading)
    os.write(writing, b"x" * 1500)
    assert lines.read() == b"x" * 1500 + b"\n"
    os.close(writing)
    assert lines.read() == b""
    os.close(reading)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_loses_lines_and_is_told_once(tmp_path):
    errors = io.BytesIO()
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    with open("/dev/full", "wb", buffering=0) as screen:
        output = Output(screen, errors, directory=tmp_path)
        for _ in range(3):
            output.write(0, b"one\n")
        output.say("still there")
        output.close()
    told = errors.getvalue().decode().splitlines()
    assert sum("the log of worker 0 in" in line and "No space left on device" in line for line in told) == 1
    assert sum("standard output cannot be written (No space left on device)" in line for line in told) == 1
    assert "[mirrored] still there" in told


def test_a_folder_of_logs_that_goes_is_told_once(tmp_path):
    errors = io.BytesIO()
    output = Output(None, errors, directory=tmp_path / "logs")
    (tmp_path / "logs").rmdir()
    for _ in range(3):
        output.write(0, b"one\n")
    output.say("on")
    output.close()
    assert errors.getvalue().decode().count("cannot be written (No such file or directory)") == 1


def test_a_folder_of_logs_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="--log-dir .* cannot be created"):
        Output(None, None, directory=tmp_path / "file")


def test_a_reader_that_stands_still_holds_nobody_up():
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as screen:
        output = Output(screen, io.BytesIO())
        while output.has_room:
            output.write(0, b"x" * 60_000 + b"\n")
        output.say("still there")
        output.close(0.2)  # gives up
    assert os.read(reading, 20) == b"[worker 0] xxxxxxxxx"
    os.close(reading)


def test_what_collectives_print_when_they_connect_is_for_the_log(tmp_path):
    screen = io.BytesIO()
    output = Output(screen, None, directory=tmp_path)
    gloo = b"[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    output.write(0, b"one\n" + gloo + b"loss " + gloo + b"two\n")
    output.write(0, gloo[:-1] + gloo + b"\n")  # by two threads at once
    output.close()
    assert screen.getvalue() == b"[worker 0] one\n[worker 0] loss two\n"
    assert (tmp_path / "worker-0.log").read_bytes().count(gloo) == 3
