"""The names of `tf.compat.v1` that eager programs use.

There are three kinds: names that TensorFlow has in both namespaces with one meaning (`shared`), names that TensorFlow 2
has moved (`_MOVED`), and functions whose parameters TensorFlow 2 has renamed or reordered (`_PARAMETERS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mirrored._typing import Operand
from mirrored.tape import stop_gradient
from mirrored.tf._ops.activations import embedding_lookup as embedding_lookup_of_2
from mirrored.tf._ops.indexing import where as where_of_2
from mirrored.tf._ops.math import cast
from mirrored.tf._ops.random import dropout as dropout_of_2
from mirrored.tf._tensors import as_tensor

# Names below `tf` that `tf.compat.v1` of TensorFlow 2.21 lacks or defines otherwise; it shares all others.
_NOT_SHARED: Final = frozenset(
    """
    Variable argmax argmin assert_equal assert_greater assert_less assert_rank autograph.to_graph batch_to_space
    boolean_mask cond constant constant_initializer convert_to_tensor data.Dataset data.TFRecordDataset
    data.TextLineDataset debugging.assert_all_finite debugging.assert_equal debugging.assert_greater
    debugging.assert_greater_equal debugging.assert_less debugging.assert_less_equal debugging.assert_near
    debugging.assert_negative debugging.assert_non_negative debugging.assert_non_positive debugging.assert_none_equal
    debugging.assert_positive debugging.assert_rank debugging.assert_rank_at_least debugging.assert_rank_in
    debugging.assert_scalar device expand_dims gather gather_nd image.crop_and_resize image.draw_bounding_boxes
    image.resize initializers.constant initializers.glorot_normal initializers.glorot_uniform initializers.he_normal
    initializers.he_uniform initializers.identity initializers.lecun_normal initializers.lecun_uniform
    initializers.ones initializers.orthogonal initializers.random_normal initializers.random_uniform
    initializers.truncated_normal initializers.variance_scaling initializers.zeros io.decode_csv io.decode_raw
    io.parse_example io.parse_single_example lin_space linalg.norm manip.reshape manip.tile math.argmax math.argmin
    math.bincount math.confusion_matrix math.count_nonzero math.in_top_k math.log_softmax math.reduce_all
    math.reduce_any math.reduce_logsumexp math.reduce_max math.reduce_mean math.reduce_min math.reduce_prod
    math.reduce_sum math.softmax name_scope nn.avg_pool nn.avg_pool2d nn.conv1d nn.conv2d nn.conv2d_transpose nn.conv3d
    nn.conv3d_transpose nn.convolution nn.crelu nn.ctc_loss nn.depth_to_space nn.depthwise_conv2d nn.dilation2d
    nn.dropout nn.embedding_lookup nn.erosion2d nn.in_top_k nn.log_softmax nn.max_pool nn.max_pool_with_argmax
    nn.moments nn.nce_loss nn.pool nn.sampled_softmax_loss nn.separable_conv2d nn.softmax
    nn.softmax_cross_entropy_with_logits nn.space_to_batch nn.space_to_depth
    nn.sparse_softmax_cross_entropy_with_logits nn.sufficient_statistics nn.weighted_cross_entropy_with_logits
    nn.weighted_moments norm ones_initializer ones_like pad random.poisson random_normal_initializer
    random_uniform_initializer reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod
    reduce_sum reverse_sequence saved_model.load shape size space_to_batch squeeze strings.length strings.reduce_join
    strings.split strings.substr strings.to_number summary.histogram summary.image summary.scalar summary.text
    train.Checkpoint transpose tuple where while_loop zeros_initializer zeros_like __version__
    autodiff.ForwardAccumulator autodiff.GradientTape config.experimental.enable_op_determinism
    distribute.DistributedDataset distribute.DistributedIterator distribute.DistributedValues distribute.InputOptions
    distribute.MultiWorkerMirroredStrategy distribute.experimental.ValueContext eig eigvals errors.SHAPES
    errors.ShapesError get_current_name_scope image.resize_with_pad inside_function linalg.banded_triangular_solve
    linalg.eig linalg.eigvals losses metrics optimizers nn.gelu random.set_seed random.stateless_shuffle
    saved_model.LoadOptions experimental.numpy keras
    """.split()
)
_NOT_SHARED_SPACES: Final = (
    "compat",
    "contrib",
    "summary",
    "test",
    "profiler",
    "image.stateless_random",
    "initializers",
)

# Names of TensorFlow 1 and where TensorFlow 2 has them.
_MOVED: Final = {
    **{
        name: f"math.{name}"
        for name in (
            "angle", "betainc", "ceil", "conj", "cumprod", "digamma", "erf", "erfc", "expm1", "igamma",
            "igammac", "imag", "invert_permutation", "is_finite", "is_inf", "is_nan", "lbeta", "lgamma",
            "log", "log1p", "log_sigmoid", "logical_xor", "polygamma", "real", "reciprocal", "rint",
            "rsqrt", "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum",
            "squared_difference", "unsorted_segment_max", "unsorted_segment_mean", "unsorted_segment_min",
            "unsorted_segment_prod", "unsorted_segment_sum", "zeta",
        )
    },
    **{
        f"gfile.{old}": f"io.gfile.{new}"
        for old, new in (
            ("Copy", "copy"), ("DeleteRecursively", "rmtree"), ("Exists", "exists"), ("FastGFile", "GFile"),
            ("GFile", "GFile"), ("Glob", "glob"), ("IsDirectory", "isdir"), ("ListDirectory", "listdir"),
            ("MakeDirs", "makedirs"), ("MkDir", "mkdir"), ("Open", "GFile"), ("Remove", "remove"),
            ("Rename", "rename"), ("Stat", "stat"), ("Walk", "walk"),
        )
    },
    "cholesky": "linalg.cholesky",
    "cross": "linalg.cross",
    "diag": "linalg.tensor_diag",
    "diag_part": "linalg.tensor_diag_part",
    "div_no_nan": "math.divide_no_nan",
    "fft": "signal.fft",
    "floordiv": "math.floordiv",
    "floormod": "math.floormod",
    "global_norm": "linalg.global_norm",
    "ifft": "signal.ifft",
    "lin_space": "linspace",
    "matrix_band_part": "linalg.band_part",
    "matrix_determinant": "linalg.det",
    "matrix_diag": "linalg.diag",
    "matrix_diag_part": "linalg.diag_part",
    "matrix_inverse": "linalg.inv",
    "matrix_solve": "linalg.solve",
    "matrix_transpose": "linalg.matrix_transpose",
    "mod": "math.mod",
    "qr": "linalg.qr",
    "random_crop": "image.random_crop",
    "random_normal": "random.normal",
    "random_shuffle": "random.shuffle",
    "random_uniform": "random.uniform",
    "svd": "linalg.svd",
    "trace": "linalg.trace",
    "truncated_normal": "random.truncated_normal",
}  # fmt: skip

_REDUCING: Final = "input_tensor axis keepdims name> reduction_indices>axis keep_dims>keepdims"
_POOLING: Final = "value>input ksize strides padding data_format name> input"
_ASSERTING: Final = "x y data> summarize message name>"
_SPARSE: Final = "labels logits name>"
# Parameters of TensorFlow 1, in order: ``old>new`` is called `new` in TensorFlow 2, and ``old>`` is ignored.
_PARAMETERS: Final[dict[str, str]] = {
    **{
        place: _REDUCING
        for name in ("all", "any", "logsumexp", "max", "mean", "min", "prod", "sum")
        for place in (f"reduce_{name}", f"math.reduce_{name}")
    },
    **{
        place: "input axis name> dimension>axis output_type"
        for name in ("argmax", "argmin")
        for place in (name, f"math.{name}")
    },
    **{
        place: _ASSERTING
        for name in ("equal", "greater", "less")
        for place in (f"assert_{name}", f"debugging.assert_{name}")
    },
    **{f"nn.{name}": "logits axis name> dim>axis" for name in ("softmax", "log_softmax")},
    **{f"math.{name}": "logits axis name> dim>axis" for name in ("softmax", "log_softmax")},
    "boolean_mask": "tensor mask name> axis",
    "expand_dims": "input axis name> dim>axis",
    "gather": "params indices validate_indices> name> axis batch_dims",
    "nn.avg_pool": _POOLING,
    "nn.avg_pool2d": _POOLING,
    "nn.conv1d": "value>input filters stride padding use_cudnn_on_gpu> data_format name> input dilations",
    "nn.conv2d": "input filter>filters strides padding use_cudnn_on_gpu> data_format dilations name> filters",
    "nn.in_top_k": "predictions targets k name>",
    "nn.max_pool": _POOLING,
    "nn.moments": "x axes shift> name> keep_dims>keepdims keepdims",
    "nn.softmax_cross_entropy_with_logits_v2": "labels logits axis name> dim>axis",
    "nn.sparse_softmax_cross_entropy_with_logits": _SPARSE,
    "nn.weighted_cross_entropy_with_logits": "labels logits pos_weight name> targets>labels",
    "norm": "tensor ord axis keepdims name> keep_dims>keepdims",
    "ones_like": "tensor>input dtype name> optimize>",
    "pad": "tensor paddings mode name> constant_values",
    "shape": "input name> out_type",
    "size": "input name> out_type",
    "squeeze": "input axis name> squeeze_dims>axis",
    "transpose": "a perm name> conjugate",
    "constant": "value dtype shape name> verify_shape>",
    "zeros_like": "tensor>input dtype name> optimize>",
}


def shared(names: Iterable[str]) -> list[str]:
    """Returns the given `tf` names whose parameters and meaning are the same in `tf.compat.v1`."""
    return [one for one in names if one not in _NOT_SHARED and not one.startswith(_NOT_SHARED_SPACES)]


def _as_before(called: str, parameters: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a TensorFlow 2 function to accept the parameters of its TensorFlow 1 version."""
    targets = {old: new if renamed else old for old, renamed, new in (one.partition(">") for one in parameters.split())}

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(targets):
            raise TypeError(f"tf.compat.v1.{called}() takes {len(targets)} arguments, but {len(args)} were given")
        given = list(zip(targets, args, strict=False))
        passed: dict[str, Any] = {}
        for old, value in [*given, *kwargs.items()]:
            if old not in targets:
                raise TypeError(f"tf.compat.v1.{called}() got an unexpected keyword argument {old!r}")
            new = targets[old]
            if not new or value is None:
                continue
            if new in passed:
                raise TypeError(f"tf.compat.v1.{called}() got two values for {new!r}")
            passed[new] = value
        return function(**passed)

    call.__name__ = call.__qualname__ = called.rpartition(".")[2]
    call.__doc__ = f"`tf.{called}` with the parameters of TensorFlow 1: {', '.join(targets)}."
    return call


def dropout(
    x: Operand,
    keep_prob: Operand | None = None,
    noise_shape: Any = None,
    seed: Any = None,
    name: str | None = None,
    rate: Operand | None = None,
) -> Any:
    """Sets elements to 0 at random, like `tf.nn.dropout`; takes either `rate` or `keep_prob`, which is ``1 - rate``.

    Raises:
        ValueError: Neither or both of `keep_prob` and `rate` were passed.
    """
    del name
    if (keep_prob is None) == (rate is None):
        raise ValueError("tf.compat.v1.nn.dropout: pass either `rate`, or `keep_prob`, which is 1 - rate")
    kept: Any = keep_prob
    return dropout_of_2(x, 1 - kept if rate is None else rate, noise_shape, seed)


def embedding_lookup(
    params: Any,
    ids: Operand,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: object = True,
    max_norm: Operand | None = None,
) -> Any:
    """Looks up embedding vectors in a table, like `tf.nn.embedding_lookup`.

    Raises:
        ValueError: There are several tables, and `partition_strategy` is not "div".
    """
    del name, validate_indices
    if isinstance(params, (list, tuple)) and len(params) > 1 and partition_strategy != "div":
        raise ValueError(
            f"tf.compat.v1.nn.embedding_lookup: {len(params)} tables were passed with partition_strategy="
            f'{partition_strategy!r}; pass one table, or "div" if the tables are consecutive parts of one'
        )
    return embedding_lookup_of_2(params, ids, max_norm)


def where(condition: Operand, x: Operand | None = None, y: Operand | None = None, name: str | None = None) -> Any:
    """Returns elements of `x` where a condition is True, and of `y` elsewhere; a vector condition selects rows.

    Without `x` and `y`, returns the indices of True elements; only in eager code.
    """
    del name
    truths = as_tensor(condition)
    if x is not None and truths.ndim == 1 and as_tensor(x).ndim > 1:
        truths = truths.reshape(-1, *(1,) * (as_tensor(x).ndim - 1))
    return where_of_2(truths, x, y)


def _of_constant_labels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a loss function so that no gradient flows to the labels, as in TensorFlow 1."""

    def loss(labels: Operand, **others: Any) -> Any:
        return function(labels=stop_gradient(as_tensor(labels)), **others)

    return loss


def _casting(dtype: str) -> Callable[..., Any]:
    def to(x: Operand, name: str | None = None) -> Any:
        del name
        return cast(x, dtype)

    to.__doc__ = f"Casts a tensor to {dtype}."
    return to


def no_op(name: str | None = None) -> None:
    """Does nothing (`tf.compat.v1.global_variables_initializer`): variables are initialized when they are created."""


def names(known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the functions and other objects of `tf.compat.v1` in a dict with keys such as ``"compat.v1.where"``.

    They are those shared with `tf`, older names of functions in `tf`, and others.

    Args:
        known: The names below `tf`.
    """
    made: dict[str, Any] = {one: known[one] for one in shared(known)}
    made |= {old: known[new] for old, new in _MOVED.items() if new in known}
    made |= {
        one: _as_before(one, parameters, known[one.removesuffix("_v2")]) for one, parameters in _PARAMETERS.items()
    }
    for one in ("argmax", "argmin"):
        old = f"arg_{one[3:]}"
        made[old] = _as_before(old, "input dimension>axis output_type name>", known[one])
    made |= {f"to_{name}": _casting(dtype) for name, dtype in _CASTS.items()}
    made["nn.dropout"], made["where"], made["nn.embedding_lookup"] = dropout, where, embedding_lookup
    softmax = "nn.softmax_cross_entropy_with_logits"
    made[softmax] = _as_before(softmax, "labels logits dim>axis name> axis", _of_constant_labels(known[softmax]))
    made |= dict.fromkeys(("global_variables_initializer", "local_variables_initializer"), no_op)
    return {f"compat.v1.{one}": value for one, value in made.items()}


_CASTS: Final = {
    "bfloat16": "bfloat16", "complex64": "complex64", "double": "float64", "float": "float32", "int32": "int32",
    "int64": "int64",
}  # fmt: skip
