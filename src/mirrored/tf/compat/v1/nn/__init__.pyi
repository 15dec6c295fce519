"""Type stub of `tf.compat.v1.nn`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf.compat.v1.nn import experimental as experimental
from mirrored.tf.math import approx_max_k as approx_max_k
from mirrored.tf.math import approx_min_k as approx_min_k
from mirrored.tf.math import tanh as tanh
from mirrored.tf.math import top_k as top_k
from mirrored.tf.math import zero_fraction as zero_fraction
from mirrored.tf.nn import atrous_conv2d as atrous_conv2d
from mirrored.tf.nn import atrous_conv2d_transpose as atrous_conv2d_transpose
from mirrored.tf.nn import avg_pool1d as avg_pool1d
from mirrored.tf.nn import avg_pool3d as avg_pool3d
from mirrored.tf.nn import batch_normalization as batch_normalization
from mirrored.tf.nn import bias_add as bias_add
from mirrored.tf.nn import compute_average_loss as compute_average_loss
from mirrored.tf.nn import conv1d_transpose as conv1d_transpose
from mirrored.tf.nn import conv_transpose as conv_transpose
from mirrored.tf.nn import elu as elu
from mirrored.tf.nn import l2_loss as l2_loss
from mirrored.tf.nn import l2_normalize as l2_normalize
from mirrored.tf.nn import leaky_relu as leaky_relu
from mirrored.tf.nn import local_response_normalization as _local_response_normalization
from mirrored.tf.nn import local_response_normalization as local_response_normalization
from mirrored.tf.nn import log_poisson_loss as log_poisson_loss
from mirrored.tf.nn import max_pool1d as max_pool1d
from mirrored.tf.nn import max_pool2d as max_pool2d
from mirrored.tf.nn import max_pool3d as max_pool3d
from mirrored.tf.nn import normalize_moments as normalize_moments
from mirrored.tf.nn import relu as relu
from mirrored.tf.nn import relu6 as relu6
from mirrored.tf.nn import scale_regularization_loss as scale_regularization_loss
from mirrored.tf.nn import selu as selu
from mirrored.tf.nn import sigmoid as sigmoid
from mirrored.tf.nn import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from mirrored.tf.nn import silu as _silu
from mirrored.tf.nn import silu as silu
from mirrored.tf.nn import softplus as softplus
from mirrored.tf.nn import softsign as softsign
from mirrored.tf.random import all_candidate_sampler as all_candidate_sampler
from mirrored.tf.random import fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler

def avg_pool(*args: Any, **kwargs: Any) -> Any: ...
def avg_pool2d(*args: Any, **kwargs: Any) -> Any: ...
def conv1d(*args: Any, **kwargs: Any) -> Any: ...
def conv2d(*args: Any, **kwargs: Any) -> Any: ...
def dropout(
    x: Any,
    keep_prob: Any | None = None,
    noise_shape: Any = None,
    seed: Any = None,
    name: str | None = None,
    rate: Any | None = None,
) -> Any: ...
def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: object = True,
    max_norm: Any | None = None,
) -> Any: ...
def in_top_k(*args: Any, **kwargs: Any) -> Any: ...
def log_softmax(*args: Any, **kwargs: Any) -> Any: ...
def max_pool(*args: Any, **kwargs: Any) -> Any: ...
def moments(*args: Any, **kwargs: Any) -> Any: ...
def softmax(*args: Any, **kwargs: Any) -> Any: ...
def softmax_cross_entropy_with_logits(*args: Any, **kwargs: Any) -> Any: ...
def softmax_cross_entropy_with_logits_v2(*args: Any, **kwargs: Any) -> Any: ...
def sparse_softmax_cross_entropy_with_logits(*args: Any, **kwargs: Any) -> Any: ...
def weighted_cross_entropy_with_logits(*args: Any, **kwargs: Any) -> Any: ...

lrn = _local_response_normalization
swish = _silu
