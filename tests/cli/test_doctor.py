from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from mirrored.cli.doctor import checkup
from mirrored.cli.doctor.facts import Facts, local_facts
from mirrored.cli.doctor.findings import findings
from mirrored.cli.doctor.links import Link, neighbours

GOOD = Facts("host0", {"the version of jax": "0.12.0"}, "GPU", 8, 64, free_bytes=2**40, write_bytes_per_second=1e9)
HOSTS = [dataclasses.replace(GOOD, host=f"host{rank}") for rank in range(4)]


def with_worker(rank: int, **changes) -> list[Facts]:
    return [dataclasses.replace(one, **changes) if rank == at else one for at, one in enumerate(HOSTS)]


def ring(slow: set[int] = frozenset(), **figures: float) -> list[Link]:
    """Links of four workers; those of the workers in `slow` have other figures."""
    good = {"latency_seconds": 1e-4, "bytes_per_second": 1e9}
    return [Link(pair, **({**good, **figures} if slow & set(pair) else good)) for pair in neighbours(4)]


def test_nothing_wrong():
    assert findings(HOSTS, ring()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": {"the version of jax": "0.10.2"}}, "the version of jax is '0.10.2', on worker 0 '0.12.0'"),
        ({"kind": "CPU", "devices": 1}, "its devices are 1 CPU, those of worker 0 8 GPU"),
        ({"clock": -7.25}, "its clock is -7.2 s from that of worker 0"),
        ({"free_bytes": 2**28}, "only 256 MiB are free for checkpoints"),
        ({"trouble": "/ckpt cannot be written: Permission denied"}, "/ckpt cannot be written: Permission denied"),
    ],
)
def test_the_host_that_is_wrong_is_named(changes, message):
    assert findings(with_worker(2, **changes), ring()) == [f"worker 2 (host2): {message}"]


def test_clocks_are_compared_as_exactly_as_the_network_allows():
    assert findings(with_worker(1, clock=1.5), [], 1.0) == []
    assert findings(with_worker(1, clock=2.5), [], 1.0) != []


@pytest.mark.parametrize("figures", [{"bytes_per_second": 1e8}, {"latency_seconds": 1e-2}])
def test_a_host_all_of_whose_links_are_slow_is_named(figures):
    assert findings(HOSTS, ring({3}, **figures)) == ["worker 3 (host3): all its links are slow"]


def test_one_slow_link_is_named():
    links = [dataclasses.replace(one, bytes_per_second=1e8) if one.workers == (1, 2) else one for one in ring()]
    assert findings(HOSTS, links) == ["the link of worker 1 (host1) and worker 2 (host2) is slow"]


def test_a_folder_that_cannot_be_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(checkup, "_all_links", list)
    (tmp_path / "file").touch()
    (wrong,) = checkup.examine(tmp_path / "file" / "checkpoints", str(tmp_path / "findings.json"))
    assert "cannot be written: Not a directory" in wrong


def test_a_folder_that_the_first_worker_cannot_write_is_not_called_unshared(tmp_path, monkeypatch):
    """On worker 1: worker 0 has not created its file, and says why."""
    said = iter([[".token", "-"], ["the folder cannot be written", ""]])
    monkeypatch.setattr(checkup.distributed, "is_connected", lambda: True)
    monkeypatch.setattr(checkup.jax, "process_index", lambda: 1)
    monkeypatch.setattr(checkup, "host_barrier", lambda *_: None)
    monkeypatch.setattr(checkup, "host_allgather", lambda _, what, value: next(said, [value]))
    (found,) = checkup._all_facts(tmp_path)
    assert found.trouble is None


def test_neighbours_make_a_ring():
    assert [neighbours(count) for count in (1, 2, 3)] == [[], [(0, 1)], [(0, 1), (1, 2), (2, 0)]]


def test_the_folder_is_looked_at(tmp_path):
    told = local_facts(tmp_path, "token")
    assert told.trouble == f"{tmp_path} is not the same folder as on worker 0: it is not shared"
    (tmp_path / "token").touch()
    told = local_facts(tmp_path, "token")
    assert told.trouble is None
    assert told.free_bytes is not None
    assert told.write_bytes_per_second is not None
    assert os.listdir(tmp_path) == ["token"], "it leaves nothing behind"
    assert local_facts(None, "token").free_bytes is None


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_workers_are_examined_together(tmp_path):
    command = [sys.executable, "-m", "mirrored.cli", "doctor", "--workers", "2", "--checkpoints", str(tmp_path / "new")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workers 0 and 1" in done.stdout
    assert "rendezvous at 127.0.0.1:" in done.stdout
    assert "[worker 0] no problems were found" in done.stdout
    assert os.listdir(tmp_path / "new") == []
