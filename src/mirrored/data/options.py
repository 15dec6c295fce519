"""Dataset options with TensorFlow's names, and `Optional`, the result of `get_next_as_optional`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
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


@dataclasses.dataclass
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

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO
    num_devices: int | None = None


@dataclasses.dataclass
class Options:
    """Options of a dataset, set with `Dataset.with_options`.

    Attributes:
        experimental_distribute: Distribution over workers.
        deterministic: Accepted for compatibility with TensorFlow and ignored; the element order is always
            deterministic.

    Example:
        >>> options = Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    """

    experimental_distribute: DistributeOptions = dataclasses.field(default_factory=DistributeOptions)
    deterministic: bool | None = None


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
        """The shapes and dtypes of the iterator's elements, with or without a value.

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
