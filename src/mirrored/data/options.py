"""Dataset options with TensorFlow's names, and `Optional`, the result of `get_next_as_optional`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from mirrored._typing import PyTree
from mirrored.errors import ArgumentError, EndOfDataError

# Dataset options, under TensorFlow's names.

AUTOTUNE: Final = -1
"""As a buffer size or a number of parallel calls: the dataset chooses one. TensorFlow: `tf.data.AUTOTUNE`."""

INFINITE_CARDINALITY: Final = -1
"""What `Dataset.cardinality` returns for a dataset that does not end. TensorFlow: `tf.data.INFINITE_CARDINALITY`."""

UNKNOWN_CARDINALITY: Final = -2
"""What `Dataset.cardinality` returns if only reading the dataset would show its number of elements.

TensorFlow: `tf.data.UNKNOWN_CARDINALITY`.
"""


class AutoShardPolicy(enum.IntEnum):
    """Enum of the ways to divide a dataset among several workers: by files, by batches, or not at all.

    It applies in `experimental_distribute_dataset`, and in `fit`, `evaluate` and `predict` of Keras models.

    Attributes:
        OFF: Every worker reads the whole dataset, in batches sized for its own replicas.
        AUTO: Same as DATA.
        FILE: Each of n workers reads every n-th file, in batches sized for its own replicas. A worker whose files end
            first continues with empty batches.
        DATA: Every worker reads the same global batches and keeps the per-replica batches of its own replicas.
        HINT: Same as DATA.

    Example:
        >>> from mirrored.data import AutoShardPolicy, Dataset, Options
        >>> options = Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
        >>> dataset = Dataset.range(8).batch(4).with_options(options)
        >>> dataset.options().experimental_distribute.auto_shard_policy.name
        'FILE'

    TensorFlow: `tf.data.experimental.AutoShardPolicy`, with the same numbers. Here AUTO means DATA, so the global
    batches, and therefore the training run, are the same for any number of workers.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class DistributeOptions:
    """The type of `Options.experimental_distribute`: how a dataset is divided among several workers.

    Attributes:
        auto_shard_policy: How the dataset is sharded over several workers.
        num_devices: Accepted for compatibility with TensorFlow and ignored; the strategy knows its devices.

    Example:
        >>> from mirrored.data import AutoShardPolicy, DistributeOptions, Options
        >>> by_files = DistributeOptions(auto_shard_policy=AutoShardPolicy.FILE)
        >>> Options(experimental_distribute=by_files).experimental_distribute.auto_shard_policy.name
        'FILE'
    """

    __slots__ = ("_policy", "num_devices")

    def __init__(self, auto_shard_policy: AutoShardPolicy | None = None, num_devices: int | None = None) -> None:
        self._policy, self.num_devices = auto_shard_policy, num_devices

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """How the dataset is sharded over several workers; AUTO if it was not set."""
        return AutoShardPolicy.AUTO if self._policy is None else self._policy

    @auto_shard_policy.setter
    def auto_shard_policy(self, value: AutoShardPolicy) -> None:
        self._policy = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistributeOptions):
            return NotImplemented
        return (self.auto_shard_policy, self.num_devices) == (other.auto_shard_policy, other.num_devices)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DistributeOptions(auto_shard_policy={self.auto_shard_policy!r}, num_devices={self.num_devices!r})"


# Options of TensorFlow's runtime. They change how fast elements arrive, not which ones, and have no counterpart here:
# `Dataset.map(num_parallel_calls=)` and `prefetch` set what this pipeline runs in parallel.


@dataclasses.dataclass(slots=True)
class ThreadingOptions:
    """The type of `Options.threading`: accepted for compatibility with TensorFlow and ignored.

    Attributes:
        max_intra_op_parallelism: Ignored.
        private_threadpool_size: Ignored.

    Example:
        >>> options = Options()
        >>> options.threading.private_threadpool_size = 4
    """

    max_intra_op_parallelism: int | None = None
    private_threadpool_size: int | None = None


class AutotuneAlgorithm(enum.IntEnum):
    """Enum of the algorithms of `AutotuneOptions`, with TensorFlow's numbers; the choice has no effect.

    Example:
        >>> AutotuneAlgorithm.HILL_CLIMB.value
        1
    """

    DEFAULT = 0
    HILL_CLIMB = 1
    GRADIENT_DESCENT = 2
    MAX_PARALLELISM = 3
    STAGE_BASED = 4


@dataclasses.dataclass(slots=True)
class AutotuneOptions:
    """The type of `Options.autotune`: accepted for compatibility with TensorFlow and ignored.

    Attributes:
        enabled: Ignored.
        cpu_budget: Ignored.
        ram_budget: Ignored.
        autotune_algorithm: Ignored.
        initial_parallelism: Ignored.
        min_parallelism: Ignored.

    Example:
        >>> options = Options()
        >>> options.autotune.autotune_algorithm = AutotuneAlgorithm.HILL_CLIMB
    """

    enabled: bool | None = None
    cpu_budget: int | None = None
    ram_budget: int | None = None
    autotune_algorithm: AutotuneAlgorithm | None = None
    initial_parallelism: int | None = None
    min_parallelism: int | None = None


@dataclasses.dataclass(slots=True)
class OptimizationOptions:
    """The type of `Options.experimental_optimization`: accepted for compatibility with TensorFlow and ignored.

    There is no graph of a pipeline to rewrite.

    Attributes:
        apply_default_optimizations: Ignored, like the other attributes.
        filter_fusion: Ignored.
        filter_parallelization: Ignored.
        inject_prefetch: Ignored.
        map_and_batch_fusion: Ignored.
        map_and_filter_fusion: Ignored.
        map_fusion: Ignored.
        map_parallelization: Ignored.
        noop_elimination: Ignored.
        parallel_batch: Ignored.
        seq_interleave_prefetch: Ignored.
        shuffle_and_repeat_fusion: Ignored.

    Example:
        >>> options = Options()
        >>> options.experimental_optimization.map_fusion = True
    """

    apply_default_optimizations: bool | None = None
    filter_fusion: bool | None = None
    filter_parallelization: bool | None = None
    inject_prefetch: bool | None = None
    map_and_batch_fusion: bool | None = None
    map_and_filter_fusion: bool | None = None
    map_fusion: bool | None = None
    map_parallelization: bool | None = None
    noop_elimination: bool | None = None
    parallel_batch: bool | None = None
    seq_interleave_prefetch: bool | None = None
    shuffle_and_repeat_fusion: bool | None = None


@dataclasses.dataclass(slots=True)
class Options:
    """Options of a dataset, set with `Dataset.with_options`.

    Assigning an attribute that does not exist raises AttributeError. So do the nested options.

    Attributes:
        experimental_distribute: Distribution over workers.
        deterministic: Accepted for compatibility with TensorFlow and ignored; the element order is always
            deterministic.
        threading: Accepted for compatibility and ignored, like all options below.
        autotune: Ignored.
        experimental_optimization: Ignored.
        experimental_slack: Ignored.
        experimental_symbolic_checkpoint: Ignored; the position of an iterator is always exact.
        experimental_warm_start: Ignored.
        dataset_name: Ignored.

    Example:
        >>> options = Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
        >>> options.threading.private_threadpool_size = 4

    TensorFlow: `tf.data.Options`, without the options of the tf.data service.
    """

    experimental_distribute: DistributeOptions = dataclasses.field(default_factory=DistributeOptions)
    deterministic: bool | None = None
    threading: ThreadingOptions = dataclasses.field(default_factory=ThreadingOptions)
    autotune: AutotuneOptions = dataclasses.field(default_factory=AutotuneOptions)
    experimental_optimization: OptimizationOptions = dataclasses.field(default_factory=OptimizationOptions)
    experimental_slack: bool | None = None
    experimental_symbolic_checkpoint: bool | None = None
    experimental_warm_start: bool | None = None
    dataset_name: str | None = None

    @property
    def experimental_deterministic(self) -> bool | None:
        """The option `deterministic`, under TensorFlow's former name."""
        return self.deterministic

    @experimental_deterministic.setter
    def experimental_deterministic(self, value: bool | None) -> None:
        self.deterministic = value

    @property
    def experimental_threading(self) -> ThreadingOptions:
        """The option `threading`, under TensorFlow's former name."""
        return self.threading

    @experimental_threading.setter
    def experimental_threading(self, value: ThreadingOptions) -> None:
        self.threading = value


def merged_options(several: Iterable[Options]) -> Options:
    """Merges several `Options` into a new one; if several set the same option, the last value is used.

    Source: `tf.data.Options.merge`, by which datasets combine the options of their inputs. None means: not set.
    """
    result = Options()
    for options in several:
        _merge(result, options)
    return result


def _merge(into: Any, given: Any) -> None:
    for name in given.__slots__:
        value = getattr(given, name)
        if isinstance(value, DistributeOptions | ThreadingOptions | AutotuneOptions | OptimizationOptions):
            _merge(getattr(into, name), value)
        elif value is not None:
            setattr(into, name, value)


# `Optional`: an element, or the end of the data.

_NOTHING = object()


class Optional:
    """The result of `get_next_as_optional`: the next element, or no value if the dataset has ended.

    Example:
        >>> from mirrored.data import Dataset
        >>> iterator = iter(Dataset.range(1))
        >>> print(iterator.get_next_as_optional().get_value())
        0
        >>> iterator.get_next_as_optional().has_value()
        False

    TensorFlow: `tf.experimental.Optional`; here `has_value` returns a bool.
    """

    def __init__(
        self,
        value: object = _NOTHING,
        end_error: Callable[..., EndOfDataError] = EndOfDataError,
        element_spec: Callable[[], PyTree] | None = None,
    ) -> None:
        self._value, self._end_error, self._element_spec = value, end_error, element_spec

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the iterator's elements, known even if this optional has no value.

        Raises:
            ArgumentError: The optional does not come from an iterator.
        """
        if self._element_spec is None:
            raise ArgumentError(
                "Optional.element_spec",
                found="the optional was not made by get_next_as_optional",
                rule="the iterator of an optional knows the shapes and dtypes of its elements",
                remedy="read the element_spec of the dataset",
            )
        return self._element_spec()

    def has_value(self) -> bool:
        """Returns whether there is an element; False means that the dataset has ended."""
        return self._value is not _NOTHING

    def get_value(self) -> Any:
        """Returns the element; raises an error if the dataset has ended.

        Raises:
            EndOfDataError: There is no element: the data had ended.
        """
        if self._value is _NOTHING:
            raise self._end_error(
                "Optional.get_value",
                found="the optional has no value: the dataset had ended",
                rule="get_value can be called only if has_value() is True",
                remedy="check has_value() first",
            )
        return self._value

    def __repr__(self) -> str:
        return f"Optional({self._value!r})" if self.has_value() else "Optional()"


def next_as_optional(
    iterator: Iterator[Any], end_error: Callable[..., EndOfDataError], element_spec: Callable[[], PyTree]
) -> Optional:
    """Returns the next element of an iterator as an `Optional`, which has no value after the last element.

    Args:
        iterator: The iterator, whose `__next__` takes an element back that an interrupt keeps from its caller.
        end_error: Creates the error of `get_value` after the last element.
        element_spec: Returns the shapes and dtypes of the elements.
    """
    optional = Optional(end_error=end_error, element_spec=element_spec)
    try:
        # CPython runs signal handlers after C functions, such as `next`, and when a Python function begins, such as
        # `Optional.__init__`. In these places an interrupt would lose the element, so none of them follows `__next__`.
        optional._value = iterator.__next__()
    except StopIteration:
        pass
    return optional
