"""Options of a dataset, with TensorFlow's names."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

AUTOTUNE: Final = -1
INFINITE_CARDINALITY: Final = -1
UNKNOWN_CARDINALITY: Final = -2


class AutoShardPolicy(enum.IntEnum):
    """How several workers share one dataset.

    Attributes:
        OFF: Every worker reads the whole dataset, in batches of its own share of the global batch size.
        AUTO: As DATA.
        FILE: Each worker reads its own files, every n-th one, in batches of its own share of the global batch size. Who
            has no more data goes on with empty batches.
        DATA: Every global batch is cut into one share per replica, and each worker takes those of its replicas.
        HINT: As DATA.

    TensorFlow: `tf.data.experimental.AutoShardPolicy`, with the same numbers. Here AUTO is DATA, so that the global
    batches, and so the training run, are the same on any number of workers.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


@dataclasses.dataclass
class DistributeOptions:
    """The part of `Options` that concerns distribution.

    Attributes:
        auto_shard_policy: How several workers share the dataset.
        num_devices: Accepted for TensorFlow's sake; the strategy knows the devices.
    """

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO
    num_devices: int | None = None


@dataclasses.dataclass
class Options:
    """Options of a dataset, attached with `Dataset.with_options`.

    Attributes:
        experimental_distribute: Distribution over workers.
        deterministic: Accepted for TensorFlow's sake; the order of elements is always deterministic.

    Example:
        >>> options = Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    """

    experimental_distribute: DistributeOptions = dataclasses.field(default_factory=DistributeOptions)
    deterministic: bool | None = None
