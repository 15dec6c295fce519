from __future__ import annotations

import io
import os

from mirrored.launch.output import Lines, Output


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
    Output(screen, screen, color=True).write(0, b"one\n")
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


def test_nobody_reads_any_more():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as screen:
        Output(screen, screen).write(0, b"one\n")
