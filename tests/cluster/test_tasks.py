"""What a task of a cluster is to JAX's runtime, and waiting for the coordinator."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from mirrored.cluster import ClusterSpec, Process, SimpleClusterResolver, process_of, wait_for_coordinator
from mirrored.cluster.tasks import collective_leader, id_in_cluster, is_chief, normalize_cluster_spec, worker_count
from mirrored.errors import ArgumentTypeError, ClusterError, RendezvousError

FULL = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p:1"], "evaluator": ["e:1"]}
WORKERS = {"worker": ["w0:1", "w1:1"], "ps": ["p:1"]}


def resolver(cluster, job=None, index=None):
    return SimpleClusterResolver(ClusterSpec(cluster), task_type=job, task_id=index)


@pytest.mark.parametrize(
    ("cluster", "job", "index", "expected"),
    [
        (FULL, "chief", 0, Process("c:1", 3, 0, ("c:1", "w0:1", "w1:1"))),
        (FULL, "worker", 1, Process("c:1", 3, 2, ("c:1", "w0:1", "w1:1"))),
        (WORKERS, "worker", 0, Process("w0:1", 2, 0, ("w0:1", "w1:1"))),
        (FULL, "evaluator", 0, None),
        ({}, None, None, None),
        ({"worker": ["w:1"]}, "worker", 0, None),
        ({"worker": ["w:1"]}, None, None, None),
    ],
)
def test_process_of(cluster, job, index, expected):
    assert process_of(resolver(cluster, job, index)) == expected


@pytest.mark.parametrize(
    ("cluster", "job", "index", "message"),
    [
        (WORKERS, None, None, "this task has the type None and the index None"),
        (WORKERS, "worker", None, "this task has the type 'worker' and the index None"),
        (WORKERS, "ps", 0, "the task is of type 'ps'"),
        (WORKERS, "chief", 0, "`task_type` 'chief' not found"),
        (WORKERS, "worker", 2, "No task with index 2 in job 'worker'"),
        ({"worker": ["a:1", "a:1"]}, "worker", 0, "gives the address a:1 to 2 tasks"),
        ({"chief": ["a:1", "b:1"]}, "chief", 0, "at most one 'chief' job"),
        ({"worker": ["a:1"], "boss": ["b:1"]}, "worker", 0, r"the jobs \['boss'\]"),
        ({"worker": ["a", "b:1"]}, "worker", 0, "the address 'a'"),
        ({"worker": ["a:0", "b:1"]}, "worker", 0, "the address 'a:0'"),
        ({"worker": ["a:x", "b:1"]}, "worker", 0, "the address 'a:x'"),
    ],
)
def test_process_of_what_does_not_hold_together(cluster, job, index, message):
    with pytest.raises(ClusterError, match=message):
        process_of(resolver(cluster, job, index))


def test_tensorflows_words():
    assert normalize_cluster_spec(FULL) == normalize_cluster_spec(ClusterSpec(FULL)) == ClusterSpec(FULL)
    assert is_chief(FULL, "chief", 0)
    assert not is_chief(FULL, "worker", 0)
    assert is_chief(WORKERS, "worker", 0)
    assert is_chief(WORKERS, "evaluator", 0)
    assert is_chief({})
    assert (worker_count(FULL, "worker"), worker_count(FULL, "evaluator")) == (3, 1)
    assert worker_count(WORKERS, "evaluator") == 1
    assert [id_in_cluster(FULL, *task) for task in (("chief", 0), ("worker", 1), ("evaluator", 0))] == [0, 2, 0]
    assert collective_leader(FULL, "worker", 0) == "/job:chief/replica:0/task:0"
    assert collective_leader(WORKERS, "worker", 1) == "/job:worker/replica:0/task:0"
    assert collective_leader(FULL, "evaluator", 0) == collective_leader({}, None, 0) == ""


def test_tensorflows_words_for_what_is_not_there():
    with pytest.raises(ArgumentTypeError, match="must be a dict or a `ClusterSpec`"):
        normalize_cluster_spec(["a:1"])
    with pytest.raises(ClusterError, match="`task_type` 'chief' not found in cluster_spec"):
        is_chief(WORKERS, "chief", 0)
    with pytest.raises(ClusterError, match="Unexpected `task_type` 'ps'"):
        worker_count(FULL, "ps")
    with pytest.raises(ClusterError, match="There is no id for task_type 'ps'"):
        id_in_cluster(FULL, "ps", 0)


def test_waits_for_a_coordinator_that_comes_late():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        timer = threading.Timer(0.2, server.listen)
        timer.start()
        assert 0.1 < wait_for_coordinator(f"127.0.0.1:{port}", 10) < 10
        timer.join()


def test_coordinator_that_does_not_come():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(RendezvousError, match=rf"no process answers at 127\.0\.0\.1:{port} after 0\.\d s"):
            wait_for_coordinator(f"127.0.0.1:{port}", 0.3)
        assert time.monotonic() - start < 5
    assert issubclass(RendezvousError, TimeoutError)
