"""TensorFlow's parameterized tests (`distribute.combinations`): which of them run in this process."""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import mirrored.tf as tf
from tf_conformance.results import NOT_HERE, OTHER_WORKERS
from tf_conformance.stand_in.strategies import NamedDistribution
from tf_conformance.stand_in.test_case import GRAPH_MODE

WORKERS: Final = int(os.environ.get("TF_CONFORMANCE_WORKERS", "1"))
_OPTIONAL: Final = (
    "mode", "use_var_policy", "required_gpus", "required_physical_gpus", "required_tpus", "required_tpu",
    "use_cloud_tpu", "has_chief", "num_workers", "num_ps", "share_gpu", "runner", "tf_api_version",
)  # fmt: skip


def reason_not_to_run(parameters: Mapping[str, Any]) -> str | None:
    """Why a combination of parameters does not run in this process; None if it does.

    Args:
        parameters: The parameters of the test.
    """
    if parameters.get("mode") == "graph" or parameters.get("tf_api_version") == 1:
        return GRAPH_MODE
    named = [value for value in parameters.values() if isinstance(value, NamedDistribution)]
    absent = [one.not_here for one in named if one.not_here is not None]
    if absent:
        return NOT_HERE + absent[0]
    if parameters.get("required_tpu") or parameters.get("required_tpus") or parameters.get("num_ps"):
        return NOT_HERE + "TPUs or parameter servers"
    asked = parameters.get("num_workers", 1) + bool(parameters.get("has_chief"))
    workers = max([asked, *(one.workers for one in named)])
    if workers > 2:
        return f"{NOT_HERE}{workers} workers"
    if workers > 1 and any(one.gpus for one in named):
        return NOT_HERE + "several workers with GPUs"
    return OTHER_WORKERS if workers != WORKERS else None


def _filters() -> tuple[Any, ...]:
    """What TensorFlow's library of combinations asks before it runs a test."""
    library = importlib.import_module("tensorflow.python.framework.test_combinations")

    class Made(library.ParameterModifier):  # type: ignore[misc, name-defined]
        """Passes strategies instead of their names."""

        def modified_arguments(self, kwargs: Mapping[str, Any], requested_parameters: Iterable[str]) -> dict[str, Any]:
            """The strategies of the parameters."""
            return {key: value.strategy for key, value in kwargs.items() if isinstance(value, NamedDistribution)}

    class Runnable(library.TestCombination):  # type: ignore[misc, name-defined]
        """Skips what does not run in this process."""

        def should_execute_combination(self, kwargs: Mapping[str, Any]) -> tuple[bool, str | None]:
            """Whether the test runs, and why not."""
            reason = reason_not_to_run(kwargs)
            return reason is None, reason

        def parameter_modifiers(self) -> list[Any]:
            """Parameters that tests need not have."""
            return [Made(), *(library.OptionalParameter(name) for name in _OPTIONAL)]

    return (Runnable(),)


def _generate(combinations: Any, test_combinations: Iterable[Any] = ()) -> Callable[[Any], Any]:
    library = importlib.import_module("tensorflow.python.framework.test_combinations")
    # Other filters than these belong to TensorFlow's own data tests.
    return library.generate(combinations, test_combinations=_filters())  # type: ignore[no-any-return]


def combinations() -> dict[str, Any]:
    """The names of `tensorflow.python.distribute.combinations`."""
    library = importlib.import_module("tensorflow.python.framework.test_combinations")
    return {
        "NamedDistribution": NamedDistribution,
        "NamedObject": library.NamedObject,
        "combine": library.combine,
        "concat": lambda *lists: [one for several in lists for one in several],
        "env": lambda: types.SimpleNamespace(tf_data_service_dispatcher=None, total_phsyical_gpus=4),
        "generate": _generate,
        "in_main_process": lambda: WORKERS == 1,
        "no_tf_function": library.NamedObject("NoTfFunction", lambda function: function),
        "tf_function": library.NamedObject("TfFunction", tf.function),
        "times": library.times,
    }
