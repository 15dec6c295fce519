"""`tf.distribute.experimental.MultiWorkerMirroredStrategy`, which takes `communication` as the first argument."""

from __future__ import annotations

from typing import Any

from mirrored.cluster import ClusterResolver
from mirrored.cluster import MultiWorkerMirroredStrategy as _MultiWorkerMirroredStrategy


class MultiWorkerMirroredStrategy(_MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` under its older name in `tf.distribute.experimental`.

    Args:
        communication: A `CommunicationImplementation`; accepted, but ignored: JAX chooses the implementation.
        cluster_resolver: The addresses of the workers; by default those of the environment variable ``TF_CONFIG``.
        **options: Options of `tf.distribute.MultiWorkerMirroredStrategy`.

    Example:
        >>> import mirrored.tf as tf
        >>> tf.distribute.experimental.MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1
        True

    TensorFlow: `tf.distribute.experimental.MultiWorkerMirroredStrategy`, which takes no other options.
    """

    def __init__(
        self, communication: object = None, cluster_resolver: ClusterResolver | None = None, **options: Any
    ) -> None:
        super().__init__(cluster_resolver, options.pop("communication_options", communication), **options)
