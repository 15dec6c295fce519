"""Creates the error for a name of TensorFlow that `mirrored.tf` does not provide, with an alternative."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from mirrored.tf._errors import MissingNameError

_PARAMETER_SERVER: Final = (
    "training is synchronous and every replica holds a copy of the variables",
    "use tf.distribute.MultiWorkerMirroredStrategy for several machines",
)
_TPU: Final = ("JAX uses TPUs like any other device", "use tf.distribute.MirroredStrategy (not tested on TPUs)")
_CLOUD: Final = (
    "no cloud's API is queried",
    "set TF_CONFIG on each machine, or pass SimpleClusterResolver(ClusterSpec({'worker': addresses}), task_id=index)",
)
_RAGGED: Final = (
    "JAX arrays are rectangular",
    "pad with tf.pad and mask, or use tf.math.segment_* over flat values",
)
_SPARSE: Final = ("gradients and tensors are dense", "use dense tensors, tf.gather and tf.math.segment_*")
_STRINGS: Final = (
    "texts are on the host, and only the operations that input pipelines use most are here",
    "use the methods of Python's str and bytes, and zlib.crc32 for hashes, in Dataset.map",
)
_GRAPHS: Final = ("there are no graphs and sessions", "call Python functions, compiled by tf.function")

# Names of TensorFlow that `mirrored.tf` omits on purpose: (reason, alternative).
KNOWN: Final[dict[str, tuple[str, str]]] = {
    "distribute.TPUStrategy": _TPU,
    "distribute.experimental.TPUStrategy": _TPU,
    "distribute.cluster_resolver.TPUClusterResolver": _TPU,
    "distribute.cluster_resolver.GCEClusterResolver": _CLOUD,
    "distribute.cluster_resolver.SageMakerClusterResolver": _CLOUD,
    "tpu": _TPU,
    "distribute.ParameterServerStrategy": _PARAMETER_SERVER,
    "distribute.experimental.ParameterServerStrategy": _PARAMETER_SERVER,
    "distribute.experimental.CentralStorageStrategy": (
        "every replica holds a copy of the variables",
        "use tf.distribute.MirroredStrategy",
    ),
    "distribute.experimental.coordinator": _PARAMETER_SERVER,
    "distribute.coordinator": _PARAMETER_SERVER,
    "distribute.experimental.rpc": _PARAMETER_SERVER,
    "distribute.Server": _PARAMETER_SERVER,
    "distribute.experimental.PreemptionCheckpointHandler": (
        "mirrored.checkpoint implements checkpointing",
        "use mirrored.checkpoint.CheckpointManager(save_on_preemption=True)",
    ),
    "ragged": _RAGGED,
    "RaggedTensor": _RAGGED,
    "RaggedTensorSpec": _RAGGED,
    "sparse": _SPARSE,
    "SparseTensor": _SPARSE,
    "SparseTensorSpec": _SPARSE,
    "IndexedSlicesSpec": _SPARSE,
    **{f"strings.{name}": _STRINGS for name in ("format", "ngrams", "to_hash_bucket_fast", "unicode_decode")},
    "io.VarLenFeature": (_SPARSE[0], "use tf.io.FixedLenSequenceFeature(shape, dtype, allow_missing=True), which pads"),
    "io.SparseFeature": _SPARSE,
    "io.RaggedFeature": _RAGGED,
    "lookup": ("devices cannot store tables of strings", "use a Python dict or numpy.searchsorted on the host"),
    "raw_ops": ("operations are JAX primitives", "use the public function (tf.math.*, tf.nn.*) or jax.lax"),
    "Graph": _GRAPHS,
    "Operation": _GRAPHS,
    "Session": _GRAPHS,
    "placeholder": _GRAPHS,
    "get_default_graph": _GRAPHS,
    "graph_util": _GRAPHS,
    "control_dependencies": ("operations run in program order", "omit it"),
    "gradients": ("a tape computes gradients", "use tf.GradientTape"),
    "hessians": ("a tape computes gradients", "use two nested tf.GradientTape or jax.hessian"),
    "lite": ("programs are JAX programs", "export with jax.export"),
    "estimator": ("also removed from TensorFlow", "write the training loop, or use tf.keras"),
    "feature_column": ("also removed from Keras", "use Keras preprocessing layers on the host"),
    "queue": ("there are no graphs and sessions", "use queue.Queue or a dataset"),
    "qint8": ("there are no quantized types", "use int8"),
    "variant": ("there are no opaque types", "keep Python objects on the host"),
    "resource": ("there are no opaque types", "keep Python objects on the host"),
}


def missing_name_error(path: str, names: Iterable[str]) -> MissingNameError:
    """Creates the error for a name of TensorFlow that `mirrored.tf` does not provide.

    Args:
        path: The name below `tf`.
        names: All public names below `tf`.
    """
    known = KNOWN.get(path.removeprefix("compat.v1."))
    if known is not None:
        why, instead = known
        return MissingNameError(f"tf.{path}", found="mirrored.tf omits it", rule=why, remedy=instead)
    near = nearest(path, names)
    return MissingNameError(
        f"tf.{path}",
        found="mirrored.tf has no such name",
        rule="mirrored.tf covers what training loops with tf.distribute and GradientTape use, not all of TensorFlow",
        remedy=f"check the spelling: the closest name is tf.{near}"
        if near
        else "use jax.numpy, jax.nn or jax.lax: tensors are jax.Arrays",
    )


def nearest(path: str, names: Iterable[str]) -> str | None:
    """Returns the public name of `mirrored.tf` that is closest to a missing name, or None if no name is close.

    That is the same word in another namespace, otherwise the most similar spelling.
    """
    everything = sorted(names)
    word = path.rpartition(".")[2]
    elsewhere = [one for one in everything if one.rpartition(".")[2] == word]
    if elsewhere:
        return min(elsewhere, key=len)
    alike = difflib.get_close_matches(path, everything, n=1, cutoff=0.7)
    if alike:
        return alike[0]
    words = {one.rpartition(".")[2]: one for one in reversed(everything)}
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.75)
    return words[close[0]] if close else None
