"""`mirrored run` with programs that do nothing but print, wait and fail: how they start, and above all how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from launcher.jobs import Ran, environment, is_alive, wait_until, written
from mirrored.launcher import Job
from mirrored.launcher.job import free_ports

__all__ = ["environment"]  # a fixture for every test here
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


def test_all_end_well(tmp_path):
    job = Job(
        program=written(
            tmp_path,
            """
            class Local: pass
            import pickle
            assert pickle.loads(pickle.dumps(Local())).__class__ is Local
            assert __name__ == "__main__" and sys.path[0] == folder
            print(f"rank {rank} {sys.argv[1:]} {os.environ['MIRRORED_VIRTUAL_DEVICES']}")
            print("and an error line", file=sys.stderr)
            import jax
            assert jax.config.jax_compilation_cache_dir
            """,
        ),
        arguments=("--lr", "0.1"),
        workers=2,
        replicas_per_worker=3,
        log_directory=tmp_path / "logs",
    )
    ran = Ran(job)
    assert ran.code == 0, ran.errors
    assert sorted(ran.out.splitlines()) == [f"[worker {r}] rank {r} ['--lr', '0.1'] 3" for r in (0, 1)]
    assert sorted(ran.errors.splitlines()) == [f"[worker {r}] and an error line" for r in (0, 1)]
    assert (tmp_path / "logs" / "worker-1.log").read_text().splitlines()[0] == "rank 1 ['--lr', '0.1'] 3"


@pytest.mark.long
def test_an_exception_of_one_ends_all_with_its_traceback_first(tmp_path):
    program = """
        import atexit
        note(f"pid{rank}", str(os.getpid()))
        def fail():
            raise ValueError("the data of this worker is bad")
        if rank == 1:
            wait_for("pid0")
            note("failed", str(time.monotonic()))
            atexit.register(time.sleep, 60)  # as JAX's shutdown barrier would
            fail()
        time.sleep(60)
        """
    ran = Ran(Job(program=written(tmp_path, program), workers=2))
    assert ran.code == 1
    assert ran.ended_at - float((tmp_path / "failed").read_text()) < 1
    lines = ran.errors.splitlines()
    assert lines[0] == "[worker 1] Traceback (most recent call last):"
    assert f'File "{tmp_path}/train.py"' in lines[1], "the traceback begins in the program"
    assert lines[-2:] == [
        "[worker 1] ValueError: the data of this worker is bad",
        "[mirrored] worker 1 ended by ValueError: the data of this worker is bad",
    ]
    assert not is_alive(int((tmp_path / "pid0").read_text()))


@pytest.mark.slow
def test_all_start_again_after_a_failure_but_not_for_ever(tmp_path):
    program = """
        note(f"ports{restart}", os.environ["TF_CONFIG"])
        if rank == 1:
            [lambda: sys.exit(7), lambda: sys.exit("no data"), lambda: os.kill(os.getpid(), signal.SIGKILL)][restart]()
        time.sleep(60)
        """
    ran = Ran(Job(program=written(tmp_path, program), workers=2, max_restarts=2))
    assert ran.code == 128 + signal.SIGKILL
    assert ran.errors.splitlines() == [
        "[mirrored] worker 1 exited with code 7; restarting all 2 workers (restart 1 of 2)",
        "[worker 1] no data",
        "[mirrored] worker 1 exited: no data; restarting all 2 workers (restart 2 of 2)",
        "[mirrored] worker 1 was killed by SIGKILL",
    ]


@pytest.mark.slow
def test_sigterm_is_passed_on_and_the_workers_may_save(tmp_path):
    program = """
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), note(f"saved{rank}"), sys.exit(0)))
        note(f"ready{rank}")
        time.sleep(60)
        """

    def terminate() -> None:
        wait_until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists(), "ready")
        os.kill(os.getpid(), signal.SIGTERM)

    ran = Ran(Job(program=written(tmp_path, program), workers=2, max_restarts=5), meanwhile=terminate)
    assert ran.code == 0
    assert (tmp_path / "saved0").exists()
    assert (tmp_path / "saved1").exists()
    assert ran.errors == "[mirrored] SIGTERM: the workers have 30 s to save and end\n"


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_that_load_data_outlive_sigterm_and_end_with_their_worker(tmp_path, method):
    program = """
        import multiprocessing
        def loaded(i):
            return i, os.getpid()
        if __name__ == "__main__":
            ends = []
            with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
                left = subprocess.Popen(["sleep", "60"])
                note(f"pids{rank}", f"{os.getpid()} {left.pid} {pool.apply(loaded, (0,))[1]}")
                signal.signal(signal.SIGTERM, lambda *_: ends.append(time.monotonic() + 0.5))
                while not ends or time.monotonic() < ends[0]:
                    pool.apply_async(loaded, (1,)).get(timeout=10)
                note(f"saved{rank}")
        """
    pids = [tmp_path / f"pids{rank}" for rank in range(2)]

    def terminate() -> None:
        wait_until(lambda: all(path.exists() and path.read_text().count(" ") == 2 for path in pids), "ready")
        os.kill(os.getpid(), signal.SIGTERM)

    ran = Ran(Job(program=written(tmp_path, program), arguments=(method,), workers=2), meanwhile=terminate)
    assert ran.code == 0, ran.errors
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2))
    ended = [int(pid) for path in pids for pid in path.read_text().split()]
    wait_until(lambda: not any(map(is_alive, ended)), "all have gone", seconds=10)  # the kernel ends them after `kill`


@pytest.mark.slow
def test_a_worker_that_ignores_sigterm_is_ended_after_the_grace(tmp_path):
    program = """
        if rank == 1: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else: signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        note(f"ready{rank}")
        while True: time.sleep(60)
        """

    def terminate() -> None:
        wait_until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists(), "ready")
        os.kill(os.getpid(), signal.SIGTERM)

    ran = Ran(Job(program=written(tmp_path, program), workers=2, grace_seconds=1.5), meanwhile=terminate)
    assert ran.code == 143
    assert ran.errors.splitlines()[-1] == "[mirrored] worker 1 had not ended 1.5 s after SIGTERM"


LASTING = """
child = subprocess.Popen(["sleep", "60"])
note(f"pids{rank}", f"{os.getpid()} {child.pid}")
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
@pytest.mark.long
def test_no_orphan_however_the_launcher_ends(tmp_path, number):
    command = [sys.executable, "-m", "mirrored.cli", "run", "--workers", "2", written(tmp_path, LASTING)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    files = [tmp_path / f"pids{rank}" for rank in (0, 1)]
    try:
        wait_until(lambda: all(one.exists() and " " in one.read_text() for one in files), "the workers are there")
        pids = [int(pid) for one in files for pid in one.read_text().split()]
        assert all(map(is_alive, pids))
        start = time.monotonic()
        launcher.send_signal(number)
        assert launcher.wait(5) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), "all have gone", seconds=max(0, start + 1 - time.monotonic()))
    finally:
        launcher.kill()
        launcher.communicate(timeout=10)


@pytest.mark.long
def test_one_process_is_the_program_itself(tmp_path):
    program = """
        import mirrored as mr
        assert "TF_CONFIG" not in os.environ
        print(mr.MirroredStrategy().num_replicas_in_sync, os.getpid())
        sys.exit(3)
        """
    command = [sys.executable, "-m", "mirrored.cli", "run", "--replicas", "4", written(tmp_path, program)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out, _ = launcher.communicate(timeout=50)
    assert launcher.returncode == 3
    assert out.split() == ["4", str(launcher.pid)]


@pytest.mark.slow
def test_two_machines(tmp_path):
    program = """
        addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
        print(f"rank {rank} of {len(addresses)} start {restart}")
        note(f"there{restart}-{rank}")
        for other in range(2): wait_for(f"there{restart}-{other}")
        if restart == 0:
            if rank == 1: raise ValueError("once")
            time.sleep(60)
        """
    path = written(tmp_path, program)
    with free_ports(1) as (port,):
        pass
    common = ["--nodes", "2", "--coordinator", f"localhost:{port}", "--max-restarts", "1"]
    command = [sys.executable, "-m", "mirrored.cli", "run", "--node-rank", "1", *common, path]
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        first = Ran(Job(program=path, nodes=2, node_rank=0, coordinator=f"localhost:{port}", max_restarts=1))
        out, _ = second.communicate(timeout=40)
    finally:
        second.kill()
    assert (first.code, second.returncode) == (0, 0), first.errors + out
    assert first.out.splitlines() == ["[worker 0] rank 0 of 2 start 0", "[worker 0] rank 0 of 2 start 1"]
    assert "machine 1 (" in first.errors
    assert "worker 1 ended by ValueError: once; restarting all 2 workers (restart 1 of 1)" in first.errors
    assert "[worker 1] rank 1 of 2 start 1" in out


@pytest.mark.long
def test_paths_arguments_and_output_in_any_script(tmp_path):
    folder = tmp_path / "Läufe 訓練 🚀"
    folder.mkdir()
    program = """
        note("Gewicht-é")
        print(sys.argv[1], "потеря 損失", flush=True)
        """
    options = ["--workers", "2", "--log-dir", str(folder / "Protokoll ß")]
    path = written(folder, program)
    os.rename(path, folder / "übung.py")
    done = subprocess.run(
        [sys.executable, "-m", "mirrored.cli", "run", *options, str(folder / "übung.py"), "--größe=2"],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (folder / "Gewicht-é").exists()
    assert sorted(done.stdout.decode().splitlines()) == [f"[worker {rank}] --größe=2 потеря 損失" for rank in (0, 1)]
    assert (folder / "Protokoll ß" / "worker-1.log").read_text(encoding="utf-8") == "--größe=2 потеря 損失\n"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_jobs_of_one_machine_do_not_meet(tmp_path):
    """They start at once, with the same home folder and a common, empty compilation cache."""
    program = """
        import jax.numpy as jnp
        import mirrored as mr
        from mirrored.checkpoint import Checkpoint, CheckpointManager
        job = float(sys.argv[1])
        strategy = mr.MultiWorkerMirroredStrategy()
        with strategy.scope():
            total = mr.Variable(0.0)
        add = lambda: total.assign_add(mr.get_replica_context().all_reduce("SUM", job))
        step = mr.function(lambda: strategy.run(add))
        manager = CheckpointManager(Checkpoint(total=total), os.path.join(folder, sys.argv[1]))
        for number in range(1, 21):
            step()
            manager.save(number)
        manager.wait()
        print(float(total.numpy()), manager.restore_latest())
        """
    path = written(tmp_path, program)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "mirrored.cli", "run", "--workers", "2", path, str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2, 3)
    ]
    try:
        ended = [job.communicate(timeout=150) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    for number, (job, (out, errors)) in enumerate(zip(jobs, ended, strict=True), 1):
        assert job.returncode == 0, errors
        assert sorted(out.splitlines()) == [f"[worker {rank}] {40.0 * number} 20" for rank in (0, 1)]
