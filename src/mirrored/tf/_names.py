"""The table of the public names of `mirrored.tf`, such as ``"math.abs"``, and their implementations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import jax

from mirrored.tf import _asking, _compat, _compat_v1, _config, _debugging, _dtypes, _errors, _function, _nest
from mirrored.tf._concrete import ConcreteFunction
from mirrored.tf._data import host_calls as _host_calls
from mirrored.tf._device_spec import DeviceSpec
from mirrored.tf._distribute import names as _distribute
from mirrored.tf._indexed_slices import IndexedSlices
from mirrored.tf._io import gfile as _gfile
from mirrored.tf._io import printing as _printing
from mirrored.tf._io import profiler as _profiler
from mirrored.tf._io import summary as _summary
from mirrored.tf._io import summary_trace as _summary_trace
from mirrored.tf._module import Module, name_scope
from mirrored.tf._ops import activations as _activations
from mirrored.tf._ops import arrays as _arrays
from mirrored.tf._ops import control_flow as _control_flow
from mirrored.tf._ops import convolution as _convolution
from mirrored.tf._ops import ctc as _ctc
from mirrored.tf._ops import diagonals as _diagonals
from mirrored.tf._ops import image as _image
from mirrored.tf._ops import image_boxes as _image_boxes
from mirrored.tf._ops import image_quality as _image_quality
from mirrored.tf._ops import indexing as _indexing
from mirrored.tf._ops import initializers as _initializers
from mirrored.tf._ops import linalg as _linalg
from mirrored.tf._ops import linalg_solving as _linalg_solving
from mirrored.tf._ops import losses as _losses
from mirrored.tf._ops import maps as _maps
from mirrored.tf._ops import math as _math
from mirrored.tf._ops import numpy as _numpy
from mirrored.tf._ops import random as _random
from mirrored.tf._ops import reductions as _reductions
from mirrored.tf._ops import sampled_losses as _sampled_losses
from mirrored.tf._ops import segments as _segments
from mirrored.tf._ops import sequences as _sequences
from mirrored.tf._ops import signal as _signal
from mirrored.tf._ops import spectra as _spectra
from mirrored.tf._ops import strings as _strings
from mirrored.tf._ops import windows as _windows
from mirrored.tf._ops.tensor_array import TensorArray
from mirrored.tf._scopes import device, init_scope
from mirrored.tf._shapes import TensorShape, TensorSpec
from mirrored.tf._table import OPS

VERSION: Final = "2.21.0"  # the TensorFlow release whose behaviour `mirrored.tf` follows

# Imported for their side effect: each module registers its operations in the table.
_TABLES: Final = (
    _activations, _arrays, _control_flow, _convolution, _ctc, _debugging, _diagonals, _image, _image_boxes,
    _image_quality, _indexing, _initializers, _linalg, _linalg_solving, _losses, _maps, _math, _nest,
    _printing, _random, _reductions, _sampled_losses, _segments, _sequences, _signal, _spectra, _strings,
    _windows,
)  # fmt: skip


def _exceptions() -> dict[str, Any]:
    found = {name: value for name, value in vars(_errors).items() if isinstance(value, type)}
    classes = {name: one for name, one in found.items() if issubclass(one, _errors.OpError)}
    codes = {_code_name(name): one.code for name, one in classes.items() if one is not _errors.OpError}
    return {f"errors.{name}": one for name, one in {**classes, **codes}.items()}


def _code_name(name: str) -> str:
    stem = name.removesuffix("Error")
    return "".join(("_" if i and one.isupper() else "") + one.upper() for i, one in enumerate(stem))


def _dtype_names() -> dict[str, Any]:
    return {place: one for name, one in _dtypes.NAMES.items() for place in (name, f"dtypes.{name}")}


_CORE: Final[dict[str, Any]] = {
    "DType": _dtypes.DType,
    "DeviceSpec": DeviceSpec,
    "IndexedSlices": IndexedSlices,
    "Module": Module,
    "Tensor": jax.Array,
    "TensorArray": TensorArray,
    "TensorShape": TensorShape,
    "TensorSpec": TensorSpec,
    "__version__": VERSION,
    "as_dtype": _dtypes.as_dtype,
    "device": device,
    "dtypes.DType": _dtypes.DType,
    "dtypes.as_dtype": _dtypes.as_dtype,
    "init_scope": init_scope,
    "name_scope": name_scope,
    "newaxis": None,
    "saved_model.ASSETS_DIRECTORY": "assets",
    "saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY": "serving_default",
    "saved_model.GPU": "gpu",
    "saved_model.SERVING": "serve",
    "saved_model.TPU": "tpu",
    "saved_model.TRAINING": "train",
    "types.experimental.ConcreteFunction": ConcreteFunction,
    "types.experimental.TensorLike": Any,
    "version.COMPILER_VERSION": "XLA",
    "version.GIT_VERSION": "mirrored",
    "version.VERSION": VERSION,
}

_OF_2: Final[dict[str, Any]] = {
    **_CORE,
    **_distribute.NAMES,
    **_config.NAMES,
    **_function.NAMES,
    **_gfile.NAMES,
    **_host_calls.NAMES,
    **_numpy.NAMES,
    **_asking.NAMES,
    **_compat.NAMES,
    **_profiler.NAMES,
    **_summary.NAMES,
    **_summary_trace.NAMES,
    **_exceptions(),
    **_dtype_names(),
    **{place: one.function for one in OPS.values() for place in one.places},
}


def _from(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _of_table(module: str, name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module(module).NAMES[name]


_DATA: Final = {
    "data.AUTOTUNE": "AUTOTUNE",
    "data.INFINITE_CARDINALITY": "INFINITE_CARDINALITY",
    "data.Options": "Options",
    "data.ThreadingOptions": "ThreadingOptions",
    "data.UNKNOWN_CARDINALITY": "UNKNOWN_CARDINALITY",
    "data.experimental.AUTOTUNE": "AUTOTUNE",
    "data.experimental.AutoShardPolicy": "AutoShardPolicy",
    "data.experimental.AutotuneAlgorithm": "AutotuneAlgorithm",
    "data.experimental.AutotuneOptions": "AutotuneOptions",
    "data.experimental.DistributeOptions": "DistributeOptions",
    "data.experimental.OptimizationOptions": "OptimizationOptions",
    "data.experimental.Optional": "Optional",
    "data.experimental.ThreadingOptions": "ThreadingOptions",
    "distribute.DistributedDataset": "DistributedDataset",
    "distribute.DistributedIterator": "DistributedIterator",
    "distribute.InputContext": "InputContext",
    "distribute.InputOptions": "InputOptions",
    "distribute.InputReplicationMode": "InputReplicationMode",
}

_DATA_EXPERIMENTAL: Final = (
    "Counter", "INFINITE_CARDINALITY", "RandomDataset", "Reducer", "UNKNOWN_CARDINALITY", "assert_cardinality",
    "bucket_by_sequence_length", "cardinality", "choose_from_datasets", "copy_to_device", "enumerate_dataset",
    "get_single_element", "group_by_reducer", "group_by_window", "ignore_errors", "map_and_batch",
    "parallel_interleave", "prefetch_to_device", "rejection_resample", "sample_from_datasets", "scan",
    "shuffle_and_repeat", "take_while", "unbatch", "unique",
)  # fmt: skip

_CLUSTER: Final = {
    "distribute.cluster_resolver.ClusterResolver": "ClusterResolver",
    "distribute.cluster_resolver.KubernetesClusterResolver": "KubernetesClusterResolver",
    "distribute.cluster_resolver.KubernetesExecutableLocation": "ExecutableLocation",
    "distribute.cluster_resolver.SimpleClusterResolver": "SimpleClusterResolver",
    "distribute.cluster_resolver.SlurmClusterResolver": "SlurmClusterResolver",
    "distribute.cluster_resolver.TFConfigClusterResolver": "TFConfigClusterResolver",
    "distribute.cluster_resolver.UnionResolver": "UnionResolver",
    "train.ClusterDef": "ClusterDef",
    "train.ClusterSpec": "ClusterSpec",
    "train.JobDef": "JobDef",
}
_TRAIN: Final = (
    "Checkpoint", "CheckpointManager", "CheckpointOptions", "checkpoints_iterator", "get_checkpoint_state",
    "latest_checkpoint", "list_variables", "load_checkpoint", "load_variable",
)  # fmt: skip

_TRAIN_V1: Final = (
    "AdadeltaOptimizer", "AdagradOptimizer", "AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer",
    "Optimizer", "RMSPropOptimizer", "cosine_decay", "exponential_decay", "get_global_step",
    "get_or_create_global_step", "inverse_time_decay", "natural_exp_decay", "piecewise_constant",
    "piecewise_constant_decay", "polynomial_decay",
)  # fmt: skip

_LOSSES_V1: Final = (
    "Reduction", "absolute_difference", "compute_weighted_loss", "hinge_loss", "huber_loss", "log_loss",
    "mean_squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy", "sparse_softmax_cross_entropy",
)  # fmt: skip

_FILES: Final = (
    "io.TFRecordOptions", "io.TFRecordWriter", "io.decode_csv", "io.read_file", "io.write_file",
    *(f"{place}.{name}" for place in ("io", "image") for name in (
        "decode_bmp", "decode_image", "decode_jpeg", "decode_png", "encode_jpeg", "encode_png",
    )),
)  # fmt: skip
_IMAGE_FILES: Final = ("decode_and_crop_jpeg", "decode_gif", "extract_jpeg_shape", "is_jpeg")
_PARSING: Final = (
    "FixedLenFeature", "FixedLenSequenceFeature", "decode_raw", "parse_example", "parse_single_example", "parse_tensor",
    "serialize_tensor",
)  # fmt: skip
_MESSAGES: Final = (
    "BytesList", "Example", "Feature", "FeatureList", "FeatureLists", "Features", "FloatList", "Int64List",
    "SequenceExample",
)  # fmt: skip


def _message(name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module("mirrored.tf._data.messages").message(name)


# Imported at the first access: modules that need optional packages or are slow to import.
_LAZY_OF_2: Final[dict[str, Callable[[], Any]]] = {
    "distribute.MultiWorkerMirroredStrategy": _from("mirrored.cluster", "MultiWorkerMirroredStrategy"),
    "distribute.experimental.MultiWorkerMirroredStrategy": _from(
        "mirrored.tf._distribute.multi_worker", "MultiWorkerMirroredStrategy"
    ),
    "compat.v1.distribute.MirroredStrategy": _from("mirrored.tf._distribute.v1", "MirroredStrategy"),
    "compat.v1.distribute.OneDeviceStrategy": _from("mirrored.tf._distribute.v1", "OneDeviceStrategy"),
    "contrib.distribute.MirroredStrategy": _from("mirrored.tf._distribute.contrib", "MirroredStrategy"),
    "keras": lambda: importlib.import_module("mirrored.tf.keras"),
    **{name: _from("mirrored.tf.keras", name) for name in ("losses", "metrics", "optimizers")},
    **{place: _from("mirrored.data", name) for place, name in _DATA.items()},
    **{f"data.experimental.{name}": _of_table("mirrored.tf._data.experimental", name) for name in _DATA_EXPERIMENTAL},
    "data.experimental.CsvDataset": _from("mirrored.tf._data.datasets", "CsvDataset"),
    "data.experimental.make_csv_dataset": _from("mirrored.tf._data.datasets", "make_csv_dataset"),
    **{name: _of_table("mirrored.tf._io.files", name) for name in _FILES},
    **{
        f"{place}.{name}": _of_table("mirrored.tf._io.image_files", f"{place}.{name}")
        for name in _IMAGE_FILES
        for place in ("io", "image")
    },
    **{f"io.{name}": _of_table("mirrored.tf._io.base64", f"io.{name}") for name in ("decode_base64", "encode_base64")},
    **{f"io.{name}": _of_table("mirrored.tf._data.parsing", name) for name in _PARSING},
    **{f"train.{name}": _message(name) for name in _MESSAGES},
    **{place: _from("mirrored.cluster", name) for place, name in _CLUSTER.items()},
    "saved_model.contains_saved_model": _from("mirrored.tf._saved_model.loading", "contains_saved_model"),
    "saved_model.load": _from("mirrored.tf._saved_model.loading", "load"),
    "saved_model.LoadOptions": _from("mirrored.tf._saved_model.loading", "LoadOptions"),
    "saved_model.SaveOptions": _from("mirrored.tf._saved_model.saving", "SaveOptions"),
    "saved_model.save": _from("mirrored.tf._saved_model.saving", "save"),
    **{
        f"{place}.{name}": _from("mirrored.tf._train", name)
        for name in _TRAIN
        for place in ("train", "compat.v1.train")
    },
    **{name: _of_table("mirrored.tf._losses_v1", name) for name in (f"compat.v1.losses.{one}" for one in _LOSSES_V1)},
    **{name: _of_table("mirrored.tf._optimizers_v1", name) for name in (f"compat.v1.train.{one}" for one in _TRAIN_V1)},
    "test.TestCase": _from("mirrored.tf._test_case", "TestCase"),
    "test.compute_gradient": _from("mirrored.tf._gradient_checker", "compute_gradient"),
    "test.main": _from("mirrored.tf._test_case", "main"),
    "train.ExponentialMovingAverage": _from("mirrored.tf._moving_averages", "ExponentialMovingAverage"),
    **{
        f"data.{name}": _from("mirrored.tf._data.datasets", name)
        for name in ("Dataset", "TextLineDataset", "TFRecordDataset")
    },
}
# Names of their own in tf.compat.v1 come before those that it shares with tf.
_SHARED: Final = {one: value for one, value in _compat_v1.names(_OF_2).items() if one not in _LAZY_OF_2}
NAMES: Final[dict[str, Any]] = {**_SHARED, **_OF_2}
LAZY: Final = {**{f"compat.v1.{one}": _LAZY_OF_2[one] for one in _compat_v1.shared(_LAZY_OF_2)}, **_LAZY_OF_2}
