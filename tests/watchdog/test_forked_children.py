"""Children that a program forks: they are no workers, and signals end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from launcher.jobs import Ran, environment, written  # noqa: F401 (a fixture)
from mirrored.launcher import Job

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", text]  # of forks beside threads
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("before", ["signal.SIG_DFL", "signal.default_int_handler"], ids=["default", "own handler"])
@pytest.mark.first(1)
@pytest.mark.long
def test_a_child_that_is_forked_beside_a_checkpoint_manager_ends_by_sigterm(tmp_path, before):
    done = run_program(f"""
import multiprocessing, os, signal, time
import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint.preemption import preemption
signal.signal(signal.SIGTERM, {before})
with mr.MirroredStrategy().scope():
    v = mr.Variable(1.0)
manager = CheckpointManager(Checkpoint(v=v), {str(tmp_path)!r}, save_on_preemption=True)
fork = multiprocessing.get_context("fork")
queue = fork.SimpleQueue()
def produce():
    try:
        queue.put(signal.getsignal(signal.SIGTERM) == {before})
        time.sleep(60)
    except KeyboardInterrupt:
        os._exit(7)
producers = [fork.Process(target=produce) for _ in range(4)]
for producer in producers:
    producer.start()
assert all(queue.get() for _ in producers)
for producer in producers:
    producer.terminate()
for producer in producers:
    producer.join(10)
print("CODES", [producer.exitcode for producer in producers])
os.kill(os.getpid(), signal.SIGTERM)  # this process still saves and ends in its own time
print("POLLED", preemption().poll())
""")
    code = -signal.SIGTERM if before == "signal.SIG_DFL" else 7
    assert f"CODES {[code] * 4}" in done.stdout, done.stdout + done.stderr
    assert "POLLED True" in done.stdout
    assert done.returncode == 0


@pytest.mark.long
def test_a_child_of_a_worker_may_fail_without_ending_the_job(tmp_path):
    program = """
        from mirrored.watchdog.fail_fast_exit import has_launcher, install_fail_fast
        install_fail_fast()
        statuses = []
        for how in ("raise", "exit", "end"):
            child = os.fork()
            if child == 0:
                if how == "raise":
                    raise ValueError("of a child")
                sys.exit(3 if how == "exit" else 0)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        time.sleep(0.3)
        print("STATUSES", statuses, has_launcher())
        """
    ran = Ran(Job(program=written(tmp_path, program), workers=2))
    assert ran.code == 0, ran.errors
    assert ran.out.count("STATUSES [1, 3, 0] True") == 2


@pytest.mark.long
def test_a_child_that_is_forked_while_a_checkpoint_is_written_ends(tmp_path):
    done = run_program("""
import multiprocessing, threading
from mirrored.checkpoint.writing import Writer
from mirrored.data import Dataset
writer, go = Writer(), threading.Event()
writer.start(lambda: go.wait(20))
iterator = iter(Dataset.range(10).batch(2))
next(iterator)
child = multiprocessing.get_context("fork").Process(target=print, args=("CHILD",))
child.start()
child.join(10)
print("CODE", child.exitcode)
go.set()
""")
    assert "CODE 0" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.long
def test_a_child_of_a_worker_does_not_leave_the_job_for_it(tmp_path):
    program = """
        import mirrored as mr
        strategy = mr.MultiWorkerMirroredStrategy()
        with strategy.scope():
            v = mr.Variable(1.0)
        import warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            from mirrored._jax import distributed
            os._exit(distributed.is_connected())  # as multiprocessing ends its children
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(0.5)
        strategy.run(lambda: v.assign_add(mr.get_replica_context().all_reduce("SUM", 1.0)))
        print("VALUE", float(v.numpy()))
        """
    ran = Ran(Job(program=written(tmp_path, program), workers=2))
    assert ran.code == 0, ran.out + ran.errors
    assert ran.out.count("VALUE 3.0") == 2
