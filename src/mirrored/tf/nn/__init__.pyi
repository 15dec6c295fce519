"""Type stub of `tf.nn`, written by tools/tf_stubs.py."""

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, SupportsInt

from jax import Array
from numpy import ndarray

from mirrored._typing import DTypeLike, StaticInts
from mirrored.tf import Tensor, space_to_batch_nd
from mirrored.tf.math import approx_max_k as approx_max_k
from mirrored.tf.math import approx_min_k as approx_min_k
from mirrored.tf.math import in_top_k as in_top_k
from mirrored.tf.math import tanh as tanh
from mirrored.tf.math import top_k as top_k
from mirrored.tf.math import zero_fraction as zero_fraction
from mirrored.tf.nn import experimental as experimental
from mirrored.tf.random import all_candidate_sampler as all_candidate_sampler
from mirrored.tf.random import fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler

def atrous_conv2d(
    value: Any,
    filters: Any,
    rate: int,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    name: str | None = None,
) -> Tensor: ...
def atrous_conv2d_transpose(
    value: Any, filters: Any, output_shape: StaticInts, rate: StaticInts, padding: str, name: str | None = None
) -> Tensor: ...
def avg_pool(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def avg_pool1d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NWC",
    name: str | None = None,
) -> Tensor: ...
def avg_pool2d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NHWC",
    name: str | None = None,
) -> Tensor: ...
def avg_pool3d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor: ...
def batch_normalization(
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any | None,
    scale: Any | None,
    variance_epsilon: Any,
    name: str | None = None,
) -> Tensor: ...
def bias_add(value: Any, bias: Any, data_format: str | None = None, name: str | None = None) -> Tensor: ...
def compute_average_loss(
    per_example_loss: Any, sample_weight: Any | None = None, global_batch_size: Any | None = None
) -> Tensor: ...
def conv1d(
    input: Any,
    filters: Any,
    stride: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str = "NWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv1d_transpose(
    input: Any,
    filters: Any,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "SAME",
    data_format: str | None = "NWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv2d(
    input: Any,
    filters: Any,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str = "NHWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "SAME",
    data_format: str | None = "NHWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv3d(
    input: Any,
    filters: Any,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str = "NDHWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv3d_transpose(
    input: Any,
    filters: Any,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "SAME",
    data_format: str | None = "NDHWC",
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def conv_transpose(
    input: Any,
    filters: Any,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "SAME",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def convolution(
    input: Any,
    filters: Any,
    strides: StaticInts | None = None,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def crelu(features: Any, axis: Any = -1, name: str | None = None) -> Tensor: ...
def ctc_loss(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    logits_time_major: bool = True,
    unique: object = None,
    blank_index: SupportsIndex | None = None,
    name: str | None = None,
) -> Tensor: ...
def depth_to_space(
    input: Any, block_size: SupportsIndex, data_format: str = "NHWC", name: str | None = None
) -> Tensor: ...
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = None,
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def dilation2d(
    input: Any,
    filters: Any,
    strides: StaticInts,
    padding: str,
    data_format: str,
    dilations: StaticInts,
    name: str | None = None,
) -> Tensor: ...
def dropout(
    x: Any,
    rate: Any,
    noise_shape: Iterable[SupportsIndex | None] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def elu(features: Any, name: str | None = None) -> Tensor: ...
def embedding_lookup(params: Any, ids: Any, max_norm: Any = None, name: str | None = None) -> Tensor: ...
def erosion2d(
    value: Any,
    filters: Any,
    strides: StaticInts,
    padding: str,
    data_format: str,
    dilations: StaticInts,
    name: str | None = None,
) -> Tensor: ...
def gelu(features: Any, approximate: Any = False, name: str | None = None) -> Tensor: ...
def l2_loss(t: Any, name: str | None = None) -> Tensor: ...
def l2_normalize(x: Any, axis: StaticInts | None = None, epsilon: float = 1e-12, name: str | None = None) -> Tensor: ...
def leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Tensor: ...
def local_response_normalization(
    input: Any,
    depth_radius: SupportsIndex = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor: ...
def log_poisson_loss(
    targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None
) -> Tensor: ...
def log_softmax(logits: Any, axis: Any = None, name: str | None = None) -> Tensor: ...
def max_pool(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def max_pool1d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NWC",
    name: str | None = None,
) -> Tensor: ...
def max_pool2d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NHWC",
    name: str | None = None,
) -> Tensor: ...
def max_pool3d(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor: ...
def max_pool_with_argmax(
    input: Any,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str,
    data_format: str = "NHWC",
    output_dtype: DTypeLike = "int64",
    include_batch_in_index: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def moments(
    x: Any, axes: StaticInts | None, shift: object = None, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: SupportsIndex,
    num_classes: SupportsIndex,
    num_true: int = 1,
    sampled_values: Iterable[Any] | None = None,
    remove_accidental_hits: bool = False,
    name: str | None = None,
) -> Tensor: ...
def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any | None, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
def pool(
    input: Any,
    window_shape: StaticInts,
    pooling_type: str,
    strides: StaticInts | None = None,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any] = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def relu(features: Any, name: str | None = None) -> Tensor: ...
def relu6(features: Any, name: str | None = None) -> Tensor: ...
def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: SupportsIndex,
    num_classes: SupportsIndex,
    num_true: int = 1,
    sampled_values: Iterable[Any] | None = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def scale_regularization_loss(regularization_loss: Any) -> Tensor: ...
def selu(features: Any, name: str | None = None) -> Tensor: ...
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: StaticInts,
    padding: str | Sequence[Sequence[SupportsInt]] | Array | ndarray[Any, Any],
    data_format: str | None = None,
    dilations: StaticInts | None = None,
    name: str | None = None,
) -> Tensor: ...
def sigmoid(x: Any, name: str | None = None) -> Tensor: ...
def sigmoid_cross_entropy_with_logits(labels: Any, logits: Any, name: str | None = None) -> Tensor: ...
def silu(features: Any, beta: Any = 1.0) -> Tensor: ...
def softmax(logits: Any, axis: Any = None, name: str | None = None) -> Tensor: ...
def softmax_cross_entropy_with_logits(
    labels: Any, logits: Any, axis: SupportsIndex = -1, name: str | None = None
) -> Tensor: ...
def softplus(features: Any, name: str | None = None) -> Tensor: ...
def softsign(features: Any, name: str | None = None) -> Tensor: ...
def space_to_depth(
    input: Any, block_size: SupportsIndex, data_format: str = "NHWC", name: str | None = None
) -> Tensor: ...
def sparse_softmax_cross_entropy_with_logits(labels: Any, logits: Any, name: str | None = None) -> Tensor: ...
def sufficient_statistics(
    x: Any, axes: StaticInts | None, shift: Any | None = None, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]: ...
def weighted_cross_entropy_with_logits(
    labels: Any, logits: Any, pos_weight: Any, name: str | None = None
) -> Tensor: ...
def weighted_moments(
    x: Any, axes: StaticInts | None, frequency_weights: Any, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]: ...

lrn = local_response_normalization
space_to_batch = space_to_batch_nd
swish = silu
