"""`mirrored run` in surroundings that fail: no terminal, a full disk, a reader that stands still or has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.jobs import Ran, environment, is_alive, wait_until, written
from mirrored.launcher import Job

__all__ = ["environment"]  # a fixture for every test here
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


def command(program: str, *options: str, workers: int = 2) -> list[str]:
    return [sys.executable, "-m", "mirrored.cli", "run", "--workers", str(workers), *options, program]


@pytest.mark.long
def test_nohup(tmp_path):
    program = """
        note(f"ready{rank}")
        wait_for("go")
        print("done")
        """
    with (tmp_path / "out").open("wb") as out:
        launcher = subprocess.Popen(
            ["nohup", *command(written(tmp_path, program))], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        wait_until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists(), "both are ready")
        launcher.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        (tmp_path / "go").touch()
        assert launcher.wait(30) == 0, (tmp_path / "out").read_text()
    assert (tmp_path / "out").read_text().count("done") == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("where", ["stdout", "both", "logs"])
@pytest.mark.long
def test_a_full_disk_does_not_end_the_training(tmp_path, where):
    program = """
        for step in range(50):
            print("step", step)
        note(f"trained{rank}")
        """
    options = []
    if where == "logs":
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "worker-1.log").symlink_to("/dev/full")
        options = ["--log-dir", str(tmp_path / "logs")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(written(tmp_path, program), *options),
            stdout=subprocess.PIPE if where == "logs" else full,
            stderr=full if where == "both" else subprocess.PIPE,
            timeout=50,
            check=False,
        )
    assert done.returncode == 0
    assert (tmp_path / "trained0").exists()
    assert (tmp_path / "trained1").exists()
    if where != "both":
        assert b"No space left on device" in done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.sampled(3)
@pytest.mark.long
def test_closed_streams(tmp_path, closed, workers):
    program = """
        print("to nobody")
        print("to nobody", file=sys.stderr)
        note(f"ended{rank}")
        if rank == 1:
            wait_for("ended0")
        sys.exit(5 * rank)
        """
    quoted = " ".join(f"'{word}'" for word in command(written(tmp_path, program), workers=workers))
    done = subprocess.run(["sh", "-c", f"{quoted} {closed}"], capture_output=True, timeout=50, check=False)
    assert done.returncode == (5 if workers == 2 else 0), done.stderr
    assert (tmp_path / "ended0").exists()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["fails", "SIGTERM", "SIGINT"])
@pytest.mark.sampled(3)
@pytest.mark.long
def test_a_reader_that_stands_still_does_not_hold_up_failures_and_signals(tmp_path, how):
    program = """
        import threading
        note(f"pid{rank}", str(os.getpid()))
        if rank == 0:
            threading.Thread(target=lambda: [print("x" * 1000) for _ in range(20_000)], daemon=True).start()
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            time.sleep(60)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        wait_for("go")
        raise ValueError("of worker 1")
        """
    reading, writing = os.pipe()
    launcher = subprocess.Popen(command(written(tmp_path, program)), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    try:
        wait_until(lambda: (tmp_path / "pid0").exists() and (tmp_path / "pid1").exists(), "both run")
        time.sleep(1)  # the pipe is full by now
        if how == "fails":
            (tmp_path / "go").touch()
        else:
            launcher.send_signal(getattr(signal, how))
        assert launcher.wait(30) == {"fails": 1, "SIGTERM": 0, "SIGINT": 130}[how]
        pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]
        assert not any(map(is_alive, pids))
        assert launcher.stderr is not None
        errors = launcher.stderr.read().decode()
        assert ("ValueError: of worker 1" in errors) == (how == "fails")
    finally:
        launcher.kill()
        launcher.communicate(timeout=10)
        os.close(reading)


@pytest.mark.long
def test_a_reader_that_pauses_misses_nothing(tmp_path):
    program = """
        for number in range(3000):
            print(number, "x" * 1000)
        """
    with subprocess.Popen(command(written(tmp_path, program)), stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        time.sleep(3)
        assert launcher.poll() is None, "it waits for its reader"
        lines = launcher.stdout.read().decode().splitlines()
        assert launcher.wait(20) == 0
    for rank in range(2):
        numbers = [int(line.split()[2]) for line in lines if line.startswith(f"[worker {rank}]")]
        assert numbers == list(range(3000))


@pytest.mark.parametrize(("status", "code"), [("256", 1), ("-1", 255), ("512", 1), ("7", 7), ("'no'", 1), ("0", 0)])
@pytest.mark.long
def test_a_status_other_than_zero_is_a_failure(tmp_path, status, code):
    ran = Ran(Job(program=written(tmp_path, f"sys.exit({status} if rank == 1 else 0)"), workers=2))
    assert ran.code == code
    if status == "256":
        assert "worker 1 exited with code 256" in ran.errors


@pytest.mark.long
def test_one_process_ends_with_its_own_status(tmp_path):
    done = subprocess.run(command(written(tmp_path, "sys.exit(256)"), workers=1), timeout=50, check=False)
    assert done.returncode == 1


@pytest.mark.long
def test_output_that_no_encoding_takes(tmp_path):
    program = r"""
        sys.stdout.buffer.write(b"\xff\xfe na\xc3\xafve\n")
        sys.stdout.flush()
        note(f"written{rank}")
        wait_for("written0")
        time.sleep(0.2)
        sys.exit("b\udce9 wrong" if rank == 1 else 0)
        """
    folder = tmp_path / "füß ❤"
    folder.mkdir()
    ran = subprocess.run(
        command(written(folder, program), "--log-dir", str(folder / "lögs")),
        capture_output=True,
        timeout=50,
        check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:backslashreplace"},
    )
    assert ran.returncode == 1, ran.stderr
    assert b"\xff\xfe na\xc3\xafve\n" in (Path(folder) / "lögs" / "worker-0.log").read_bytes()
    assert b"Traceback" not in ran.stderr, ran.stderr.decode(errors="replace")
