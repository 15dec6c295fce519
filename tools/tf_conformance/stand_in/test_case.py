"""The base class of TensorFlow's tests, decorators of `framework.test_util`, and helpers of `distribute.test_util`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import unittest
import unittest.mock
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import mirrored.tf as tf
from tf_conformance.results import NOT_HERE

GRAPH_MODE: Final = NOT_HERE + "graph mode"
_WITHOUT_EFFECT: Final = (
    "run_in_graph_and_eager_modes run_all_in_graph_and_eager_modes assert_no_new_tensors run_v2_only run_gpu_only "
    "assert_no_new_pyobjects_executing_eagerly assert_no_garbage_created run_cuda_only disable_xla disable_tfrt "
    "with_eager_op_as_function with_control_flow_v2 enable_control_flow_v2 disable_control_flow_v2 deterministic_ops "
    "run_all_without_tensor_float_32 run_without_tensor_float_32 no_xla_auto_jit with_forward_compatibility_horizons "
    "enable_eager_op_as_function run_without_eager_op_as_function"
).split()
_FOR_GRAPHS: Final = ("run_v1_only", "run_deprecated_v1", "deprecated_graph_mode_only")


def _plain(value: object) -> object:
    """A name without `:0`, which ends no name of a variable here (documented difference 17)."""
    return value.removesuffix(":0") if isinstance(value, str) else value


def _jobs(cluster: Any) -> dict[str, dict[int, str]]:
    """The addresses of a cluster by job and task, of a `ClusterDef` or its text."""
    if not isinstance(cluster, str):
        return {job.name: dict(job.tasks) for job in cluster.job}
    found = {}
    for job in re.finditer(r"job\s*\{(.*?\})\s*\}", cluster, re.DOTALL):
        name = re.findall(r"name:\s*['\"](.*?)['\"]", job[1])[0]
        tasks = re.findall(r"tasks\s*\{\s*(?:key:\s*(\d+))?\s*value:\s*['\"](.*?)['\"]", job[0])
        found[name] = {int(key or 0): address for key, address in tasks}
    return found


class TestCase(tf.test.TestCase):
    """The facade's test case; version 1's names and the ends of variables' names are translated."""

    __test__ = False

    def assertEqual(self, first: object, second: object, msg: object = None) -> None:
        """Asserts that two values are equal, or two names but for `:0`."""
        super().assertEqual(_plain(first), _plain(second), msg)

    def assertProtoEquals(self, expected_message_maybe_ascii: object, message: Any, msg: str | None = None) -> None:
        """Asserts that a cluster equals one in the text format of protocol buffers, or another one."""
        expected = expected_message_maybe_ascii
        self.assertEqual(_jobs(expected), _jobs(message), msg)

    def get_temp_dir(self) -> str:
        """A folder of this test, which all workers share, as all workers save under one path here."""
        root = os.environ.get("TF_CONFORMANCE_FOLDER")
        if root is None:
            return super().get_temp_dir()
        folder = os.path.join(root, f"{type(self).__name__}.{self._testMethodName}"[:200])
        os.makedirs(folder, exist_ok=True)
        return folder

    def test_session(self, *args: object, **kwargs: object) -> Any:
        """Version 1's name of `cached_session`."""
        return self.cached_session()


def skip(reason: str) -> Callable[..., Any]:
    """A decorator, or maker of decorators, that skips a test or a class.

    Args:
        reason: The reason.
    """

    def make(*args: Any, **kwargs: Any) -> Any:
        return unittest.skip(reason)(args[0]) if args and callable(args[0]) else unittest.skip(reason)

    return make


def refuse_graphs(*args: object, **kwargs: object) -> Any:
    """Skips the test that calls it: it needs a graph."""
    raise unittest.SkipTest(GRAPH_MODE)


def without_effect(*args: Any, **kwargs: Any) -> Any:
    """A decorator, or maker of decorators, that returns what it decorates."""
    return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else lambda decorated: decorated


@contextlib.contextmanager
def nothing(*args: object, **kwargs: object) -> Iterator[None]:
    """A context manager without an effect."""
    yield


def also_run_as_function(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test as it is, and in a `tf.function`.

    Args:
        test: The test.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)
        tf.function(lambda: test(*args, **kwargs))()

    return run


def build_as_function(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test in a `tf.function`.

    Args:
        test: The test.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        tf.function(lambda: test(*args, **kwargs))()

    return run


class MemoryChecker:
    """Stands for TensorFlow's check of its own memory; checks nothing."""

    def __enter__(self) -> MemoryChecker:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def report(self) -> None:
        """Has no effect."""

    def assert_no_leak_if_all_possibly_except_one(self) -> None:
        """Has no effect."""


def gather(strategy: tf.distribute.Strategy, value: Any) -> Any:
    """Stacks the components of all replicas, by public operations.

    Args:
        strategy: The strategy.
        value: A structure of per-replica values.
    """

    def stack(one: Any) -> Any:
        if not isinstance(one, tf.distribute.DistributedValues):
            return tf.stack([one])
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return tf.stack(list(one.values))
        return strategy.gather(strategy.run(lambda part: tf.expand_dims(part, 0), args=(one,)), axis=0)

    return tf.nest.map_structure(stack, value)


def create_per_replica(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> Any:
    """A per-replica value of the components.

    Args:
        strategy: The strategy.
        values: One component per replica of this worker.
    """
    components = iter(values)
    return strategy.experimental_distribute_values_from_function(lambda context: next(components))


def test_util() -> dict[str, Any]:
    """The names of `tensorflow.python.framework.test_util`."""
    return {
        **dict.fromkeys(_WITHOUT_EFFECT, without_effect),
        **{name: skip(f"{GRAPH_MODE} ({name})") for name in _FOR_GRAPHS},
        **dict.fromkeys(("use_gpu", "force_gpu", "force_cpu"), nothing),
        "TensorFlowTestCase": TestCase,
        "also_run_as_tf_function": also_run_as_function,
        "build_as_function_and_v1_graph": build_as_function,
        "gpu_device_name": lambda: "/device:GPU:0",
        "is_gpu_available": lambda *args, **kwargs: True,
        "is_xla_enabled": lambda: False,
        "main": lambda *args, **kwargs: None,
    }


def platform_test() -> dict[str, Any]:
    """The names of `tensorflow.python.platform.test`."""
    return {
        "TestCase": TestCase,
        "gpu_device_name": lambda: "/device:GPU:0",
        "is_built_with_cuda": lambda: True,
        "is_built_with_rocm": lambda: False,
        "is_gpu_available": lambda *args, **kwargs: True,
        "main": lambda *args, **kwargs: None,
        "mock": unittest.mock,
    }
