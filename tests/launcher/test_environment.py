from __future__ import annotations

import json
import sys

import pytest

from mirrored.errors import ArgumentError, ClusterError, DeviceError
from mirrored.launcher.environment import check_cluster, visible_gpus, worker_environment
from mirrored.launcher.job import Job

ADDRESSES = ["127.0.0.1:1001", "127.0.0.1:1002"]
CPU = {"JAX_PLATFORMS": "cpu", "HOME": "/home/me"}


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    """Makes JAX find a plugin for CUDA."""
    (tmp_path / "path" / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
    (tmp_path / "path" / "jax_plugins" / "xla_cuda13" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)


def test_a_worker_learns_its_place_and_its_devices():
    job = Job(program="train.py", workers=2, replicas_per_worker=3)
    environment = worker_environment(job, 1, ADDRESSES, restart=4, base=CPU)
    assert json.loads(environment["TF_CONFIG"]) == {
        "cluster": {"worker": ADDRESSES},
        "task": {"type": "worker", "index": 1},
    }
    assert environment["MIRRORED_VIRTUAL_DEVICES"] == "3"
    assert environment["MIRRORED_RESTART"] == "4"
    assert environment["JAX_COMPILATION_CACHE_DIR"].startswith("/home/me/.cache/mirrored/compiled/")
    assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"


def test_one_worker_has_no_cluster_and_what_the_user_set_stays():
    base = {**CPU, "JAX_COMPILATION_CACHE_DIR": "/mine"}
    environment = worker_environment(Job(program="train.py"), 0, ADDRESSES[:1], base=base)
    assert "TF_CONFIG" not in environment
    assert "MIRRORED_VIRTUAL_DEVICES" not in environment
    assert environment["JAX_COMPILATION_CACHE_DIR"] == "/mine"
    assert "JAX_COMPILATION_CACHE_DIR" not in worker_environment(
        Job(program="train.py", compile_cache=False), 0, [], base=CPU
    )


@pytest.mark.parametrize("elastic", [False, True])
def test_a_launcher_that_a_worker_of_another_job_has_started_does_not_pass_on_its_place(elastic):
    outer = {"MIRRORED_ELASTIC": "1", "MIRRORED_COPY_FDS": "4,5", "MIRRORED_RESTART": "2", "TF_CONFIG": "{}", **CPU}
    environment = worker_environment(Job(program="train.py", elastic=elastic), 0, ADDRESSES[:1], base=outer)
    assert "TF_CONFIG" not in environment
    assert "MIRRORED_COPY_FDS" not in environment
    assert environment.get("MIRRORED_ELASTIC") == ("0" if elastic else None)
    assert environment["MIRRORED_RESTART"] == "0"


def test_a_cluster_that_the_user_has_set_stays():
    base = {**CPU, "TF_CONFIG": "{}"}
    assert worker_environment(Job(program="train.py"), 0, ADDRESSES[:1], base=base)["TF_CONFIG"] == "{}"


_TWO_MACHINES = json.dumps(
    {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 1}}
)


@pytest.mark.parametrize("options", [{"workers": 2}, {"elastic": True}])
def test_a_cluster_of_several_machines_is_not_replaced_by_workers_of_one(options):
    """The other machine would wait for this one, which trains a model of its own."""
    job = Job(program="train.py", **options)
    with pytest.raises(ClusterError, match="TF_CONFIG: process worker 1 of 2"):
        check_cluster(job, {"TF_CONFIG": _TWO_MACHINES})
    check_cluster(job, {})
    check_cluster(job, {"TF_CONFIG": "{}"})
    check_cluster(job, {"TF_CONFIG": _TWO_MACHINES, "MIRRORED_RESTART": "0"})  # of a worker of another job


@pytest.mark.parametrize("options", [{}, {"nodes": 2, "node_rank": 1, "coordinator": "host0:1", "workers": 2}])
def test_one_process_joins_the_cluster_and_options_may_name_the_machines(options):
    check_cluster(Job(program="train.py", **options), {"TF_CONFIG": _TWO_MACHINES})


def test_gpus_are_dealt_out(cuda):
    job = Job(program="train.py", workers=2)
    base = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert [worker_environment(job, r, ADDRESSES, base=base)["CUDA_VISIBLE_DEVICES"] for r in (0, 1)] == ["4,5", "6,7"]
    second = Job(program="train.py", workers=2, nodes=2, node_rank=1, coordinator="h:1", replicas_per_worker=1)
    assert worker_environment(second, 3, ADDRESSES * 2, base=base)["CUDA_VISIBLE_DEVICES"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(job, 0, ADDRESSES, base={**CPU, "JAX_PLATFORMS": "cpu"})


@pytest.mark.parametrize("workers", [1, 3])
def test_too_few_gpus(cuda, workers):
    job = Job(program="train.py", workers=workers, replicas_per_worker=3)
    with pytest.raises(DeviceError, match=rf"2 GPUs \(0, 1\) for {workers} workers with 3 replicas each"):
        worker_environment(job, 0, ADDRESSES, base={"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_can_join_an_elastic_job_have_gpus_of_their_own(cuda, workers):
    job = Job(program="train.py", workers=workers, elastic=True, max_workers=4)
    base = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert [worker_environment(job, index, [], base=base)["CUDA_VISIBLE_DEVICES"] for index in range(4)] == list("0123")
    with pytest.raises(DeviceError, match="2 GPUs .* for 4 workers"):
        worker_environment(job, 0, [], base={"CUDA_VISIBLE_DEVICES": "0,1"})


def test_gpus_are_found_without_starting_jax(tmp_path, cuda):
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "2", "10"]
    assert visible_gpus({"JAX_PLATFORMS": "cpu"}, tmp_path) == []
    assert visible_gpus({"JAX_PLATFORMS": "cuda,cpu"}, tmp_path) == ["0", "2", "10"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": " 0, 2 ,"}, tmp_path) == ["0", "2"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": " "}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, tmp_path) == ["0"], "CUDA ignores what follows -1"
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1,0"}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, tmp_path) == [], "Slurm sets it in jobs without GPUs"
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-1"}, tmp_path) == ["GPU-8932f937", "MIG-1"]


def test_gpus_that_jax_has_no_plugin_for_are_left_out(tmp_path, monkeypatch):
    """JAX computes on the CPU then, so `--replicas 2` means two virtual devices."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("mirrored.launcher.environment.has_cuda_plugin", lambda: False)
    assert visible_gpus({}, tmp_path) == []
    assert visible_gpus({"JAX_PLATFORMS": "cuda"}, tmp_path) == ["0"], "JAX names what is missing"
    job = Job(program="train.py", replicas_per_worker=2)
    environment = worker_environment(job, 0, [], base={"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/home/me"})
    assert (environment["MIRRORED_VIRTUAL_DEVICES"], environment["CUDA_VISIBLE_DEVICES"]) == ("2", "0,1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"program": "nonesuch.py"}, "there is no file 'nonesuch.py'"),
        ({"nodes": 2, "node_rank": 2, "coordinator": "h:1"}, "--node-rank 2 is not a machine of --nodes 2"),
        ({"nodes": 2}, "--nodes 2 was given without --coordinator"),
        ({"nodes": 2, "coordinator": "host0"}, "--coordinator 'host0'"),
    ],
)
def test_jobs_that_do_not_hold_together(options, message):
    with pytest.raises(ArgumentError, match=message):
        Job(**{"program": __file__, **options}).check()
