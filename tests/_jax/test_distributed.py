"""Probes of what `distributed` relies on in JAX: the detection methods, and the key-value store."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys

import pytest

from mirrored._jax import distributed
from mirrored._jax.private import clusters

# The detection methods


@pytest.mark.parametrize("method", clusters.ClusterEnv._cluster_types, ids=lambda method: method.__name__)
def test_each_detection_method_has_the_interface(method: type[clusters.ClusterEnv]) -> None:
    assert isinstance(method.name, str)
    assert isinstance(method.opt_in_only_method, bool)
    assert isinstance(method.is_env_present(), bool)
    for name in ("get_process_count", "get_process_id", "get_local_process_id"):
        assert not [
            one for one in inspect.signature(getattr(method, name)).parameters.values() if one.default is one.empty
        ]
    parameters = inspect.signature(method.get_coordinator_address).parameters
    assert {"timeout_secs", "override_coordinator_port"} <= set(parameters), "clusters would not be detected"


def test_the_methods_that_are_known_by_name_exist() -> None:
    names = {method.__name__ for method in clusters.ClusterEnv._cluster_types}
    assert {"K8sCluster", "OmpiCluster", "SlurmCluster"} <= names


def test_outside_of_clusters_none_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_", "SLURM_", "KUBERNETES_", "JOB_COMPLETION", "TPU_")):
            monkeypatch.delenv(name)
    assert distributed.detect(1) is None


def test_a_process_of_open_mpi_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1:34911")
    for name, value in (("WORLD_SIZE", "4"), ("WORLD_RANK", "3"), ("WORLD_LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_{name}", value)
    found = distributed.detect(1)
    assert found is not None
    assert (found.num_processes, found.process_id, found.restricts_devices) == (4, 3, True)
    assert found.coordinator.startswith("10.96.0.1:")


# The key-value store


def test_one_process_alone_is_not_connected() -> None:
    assert not distributed.is_connected()
    assert (distributed.this_process(), distributed.num_processes()) == (0, 1)
    assert distributed.has_devices(), "the fixtures of the suite have initialized them"


STORE = """
import json, sys
import jax
from mirrored._jax import distributed as store
told = {"devices before": store.has_devices()}
jax.distributed.initialize(sys.argv[1], num_processes=1, process_id=0)
told["address"] = store.address()
told["devices after"] = store.has_devices()
store.put("a/one", "1")
store.put("a/two", "2")
try:
    store.put("a/one", "again")
except RuntimeError as error:
    told["twice"] = type(error).__name__
told["get"] = store.get("a/one", 1.0)
store.post("a/one", "3")
told["get_if_set"] = store.get_if_set("a/one")
told["nothing"] = store.get_if_set("b")
told["get_all_below"] = store.get_all_below("a")
try:
    store.get("b", 0.05)
except store.NoAnswer as error:
    told["late"] = str(error)
store.forget("a/one")
told["forgotten"] = store.get_if_set("a/one")
told["connected"] = store.is_connected()
print(json.dumps(told))
"""


@pytest.mark.multiprocess
@pytest.mark.long
def test_the_store_answers_as_jobs_expect() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORE, address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "devices before": False,
        "address": address,
        "devices after": False,
        "twice": "JaxRuntimeError",
        "get": "1",
        "get_if_set": "3",
        "nothing": None,
        "get_all_below": {"one": "3", "two": "2"},
        "late": "b",
        "forgotten": None,
        "connected": False,
    }
