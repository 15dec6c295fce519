from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import mirrored.tf as tf
from mirrored.errors import ContextError
from mirrored.tf import _config


def run(program: str, **environment: str) -> str:
    """What a program prints in a process of its own, in which JAX has not started."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_cpu_split_into_devices() -> None:
    out = run("""
        import mirrored.tf as tf
        cpus = tf.config.list_physical_devices("CPU")
        assert tf.config.list_physical_devices("GPU") == []
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 3)
        print(len(tf.config.list_logical_devices()), len(tf.config.get_logical_device_configuration(cpus[0])))
        print(tf.config.list_logical_devices("CPU")[2].name, tf.distribute.MirroredStrategy().num_replicas_in_sync)
        with tf.device("/CPU:1"):
            print(tf.ones([1]).devices())
        try:
            tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        except RuntimeError as error:
            print("refused:", "JAX has started" in str(error))
    """)
    assert out.splitlines() == ["3 3", "/device:CPU:2 3", "{CpuDevice(id=1)}", "refused: True"]


@pytest.mark.long
def test_virtual_devices_stand_for_gpus() -> None:
    out = run("""
        import mirrored.tf as tf
        gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=1024)] * 2)
        print([one.name for one in tf.config.list_logical_devices("GPU")])
        print(tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).num_replicas_in_sync, tf.test.is_gpu_available())
    """)
    assert out.splitlines() == ["['/device:GPU:0', '/device:GPU:1']", "2 True"]


@pytest.mark.long
def test_strategies_use_the_visible_gpus() -> None:
    out = run(
        """
        import mirrored.tf as tf
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[:2], "GPU")
        print(len(gpus), tf.config.get_visible_devices("GPU") == gpus[:2], len(tf.config.list_logical_devices("GPU")))
        print(tf.distribute.MirroredStrategy().num_replicas_in_sync)
        for kept in (gpus[2:], []):
            try:
                tf.config.set_visible_devices(kept, "GPU")
            except RuntimeError as error:
                print("refused:", "cannot be modified after JAX has initialized them" in str(error))
        tf.config.set_visible_devices(gpus, "GPU")
        print(tf.distribute.MirroredStrategy().num_replicas_in_sync)
    """,
        MIRRORED_VIRTUAL_DEVICES="4",
        MIRRORED_VIRTUAL_KIND="GPU",
    )
    assert out.splitlines() == ["4 True 2", "2", "refused: True", "refused: True", "4"]


@pytest.mark.long
def test_simulated_gpus_are_hidden_before_jax_has_started() -> None:
    out = run(
        """
        import mirrored.tf as tf
        tf.config.set_visible_devices([], "GPU")
        print(tf.config.list_physical_devices("GPU"), tf.distribute.MirroredStrategy().num_replicas_in_sync)
    """,
        MIRRORED_VIRTUAL_DEVICES="4",
        MIRRORED_VIRTUAL_KIND="GPU",
    )
    assert out.splitlines() == ["[] 1"]


@pytest.mark.long
def test_virtual_gpus_from_the_environment() -> None:
    out = run(
        """
        import mirrored.tf as tf
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        print(len(tf.config.list_physical_devices("GPU")))
        print(tf.distribute.MirroredStrategy().extended.worker_devices[1][-5:])
        """,
        MIRRORED_VIRTUAL_DEVICES="4",
        MIRRORED_VIRTUAL_KIND="GPU",
    )
    assert out.splitlines() == ["4", "GPU:1"]


def test_there_is_one_physical_cpu() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    assert cpu == ("/physical_device:CPU:0", "CPU")
    assert cpu in tf.config.get_visible_devices()
    assert tf.config.experimental.get_device_details(cpu) == {}


def test_visible_devices_exist() -> None:
    with pytest.raises(ValueError, match="Unrecognized device"):
        tf.config.set_visible_devices([tf.config.PhysicalDevice("/physical_device:GPU:7", "GPU")], "GPU")


def test_cpus_do_not_count_their_memory() -> None:
    with pytest.raises(ValueError, match="has no memory statistics"):
        tf.config.experimental.get_memory_info("CPU:0")


def test_switches_are_kept() -> None:
    tf.config.set_soft_device_placement(False)
    assert not tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(3)
    assert tf.config.threading.get_intra_op_parallelism_threads() == 2
    assert tf.config.threading.get_inter_op_parallelism_threads() == 3
    tf.config.optimizer.set_jit(True)
    assert tf.config.optimizer.get_jit() == "autoclustering"
    tf.config.experimental.enable_op_determinism()
    assert tf.test.gpu_device_name() == ""


@pytest.mark.parametrize(("has_plugin", "expected"), [(True, "--xla_gpu_deterministic_ops=true"), (False, "")])
def test_the_flag_for_deterministic_kernels_is_set_before_jax_starts(
    monkeypatch: pytest.MonkeyPatch, has_plugin: bool, expected: str
) -> None:
    """The GPUs were listed first, which starts JAX."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(_config, "has_devices", lambda: False)
    monkeypatch.setattr(_config, "_has_accelerator_plugin", lambda: has_plugin)
    monkeypatch.setattr(_config, "list_physical_devices", lambda kind: pytest.fail("starts JAX"))
    tf.config.experimental.enable_op_determinism()
    assert os.environ["XLA_FLAGS"] == expected


def test_deterministic_kernels_after_jax_has_started_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(_config, "has_devices", lambda: True)
    monkeypatch.setattr(_config.jax, "default_backend", lambda: "gpu")
    with pytest.raises(ContextError, match="already started on GPUs, as list_physical_devices"):
        tf.config.experimental.enable_op_determinism()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    tf.config.experimental.enable_op_determinism()


def test_functions_can_run_eagerly() -> None:
    seen: list[str] = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        seen.append(type(x).__name__)
        return x

    tf.config.run_functions_eagerly(True)
    try:
        assert tf.config.functions_run_eagerly()
        step(tf.ones([1]))
        step(tf.ones([1]))
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == ["ArrayImpl", "ArrayImpl"]


def test_options_of_the_graph_optimizer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_config, "_state", _config._State())
    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    tf.config.optimizer.set_experimental_options({"debug_stripper": True})
    kept = tf.config.optimizer.get_experimental_options()
    assert kept == {"constant_folding": False, "debug_stripper": True}
    with pytest.raises(ValueError, match=r"Unknown options \['folding'\]: TensorFlow has layout_optimizer"):
        tf.config.optimizer.set_experimental_options({"folding": True})
