"""Type stub of `tf`, written by tools/tf_stubs.py."""

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from logging import Logger
from typing import IO, Any, NamedTuple, Self, SupportsIndex, overload

from jax import Array, Device
from numpy import ndarray

from mirrored import Function
from mirrored import GradientTape as _GradientTape
from mirrored import UnconnectedGradients as UnconnectedGradients
from mirrored import Variable as _Variable
from mirrored import VariableAggregation as VariableAggregation
from mirrored import VariableSynchronization as VariableSynchronization
from mirrored import custom_gradient as custom_gradient
from mirrored import stop_gradient as stop_gradient
from mirrored import variable_creator_scope as variable_creator_scope
from mirrored._typing import DTypeLike, ShapeLike, StaticInts
from mirrored.runtime.ambient import ReadableVariable
from mirrored.tf import autodiff as autodiff
from mirrored.tf import autograph as autograph
from mirrored.tf import bitwise as bitwise
from mirrored.tf import compat as compat
from mirrored.tf import config as config
from mirrored.tf import contrib as contrib
from mirrored.tf import data as data
from mirrored.tf import debugging as debugging
from mirrored.tf import distribute as distribute
from mirrored.tf import dtypes as dtypes
from mirrored.tf import errors as errors
from mirrored.tf import experimental as experimental
from mirrored.tf import image as image
from mirrored.tf import initializers as initializers
from mirrored.tf import io as io
from mirrored.tf import keras as keras
from mirrored.tf import linalg as linalg
from mirrored.tf import manip as manip
from mirrored.tf import math as math
from mirrored.tf import nest as nest
from mirrored.tf import nn as nn
from mirrored.tf import profiler as profiler
from mirrored.tf import random as random
from mirrored.tf import saved_model as saved_model
from mirrored.tf import signal as signal
from mirrored.tf import strings as strings
from mirrored.tf import summary as summary
from mirrored.tf import test as test
from mirrored.tf import train as train
from mirrored.tf import types as types
from mirrored.tf import version as version
from mirrored.tf._device_spec import DeviceSpec as DeviceSpec
from mirrored.tf._dtypes import DType as DType
from mirrored.tf._indexed_slices import IndexedSlices as _IndexedSlices
from mirrored.tf._module import Module as _Module
from mirrored.tf._module import name_scope as name_scope
from mirrored.tf._ops.tensor_array import TensorArray as _TensorArray
from mirrored.tf._shapes import TensorSpec as TensorSpec
from mirrored.tf.config import LogicalDevice
from mirrored.tf.debugging import Assert as Assert
from mirrored.tf.debugging import assert_equal as assert_equal
from mirrored.tf.debugging import assert_greater as assert_greater
from mirrored.tf.debugging import assert_less as assert_less
from mirrored.tf.debugging import assert_rank as assert_rank
from mirrored.tf.dtypes import saturate_cast as saturate_cast
from mirrored.tf.initializers import Constant, Ones, RandomNormal, RandomUniform, Zeros
from mirrored.tf.linalg import eig as eig
from mirrored.tf.linalg import eigvals as eigvals
from mirrored.tf.linalg import sqrtm
from mirrored.tf.math import abs as abs
from mirrored.tf.math import acos as acos
from mirrored.tf.math import acosh as acosh
from mirrored.tf.math import add as add
from mirrored.tf.math import add_n as add_n
from mirrored.tf.math import argmax as argmax
from mirrored.tf.math import argmin as argmin
from mirrored.tf.math import asin as asin
from mirrored.tf.math import asinh as asinh
from mirrored.tf.math import atan as atan
from mirrored.tf.math import atan2 as atan2
from mirrored.tf.math import atanh as atanh
from mirrored.tf.math import cos as cos
from mirrored.tf.math import cosh as cosh
from mirrored.tf.math import cumsum as cumsum
from mirrored.tf.math import divide as _divide
from mirrored.tf.math import divide as divide
from mirrored.tf.math import equal as equal
from mirrored.tf.math import exp as exp
from mirrored.tf.math import floor as floor
from mirrored.tf.math import greater as greater
from mirrored.tf.math import greater_equal as greater_equal
from mirrored.tf.math import less as less
from mirrored.tf.math import less_equal as less_equal
from mirrored.tf.math import logical_and as logical_and
from mirrored.tf.math import logical_not as logical_not
from mirrored.tf.math import logical_or as logical_or
from mirrored.tf.math import maximum as maximum
from mirrored.tf.math import minimum as minimum
from mirrored.tf.math import multiply as multiply
from mirrored.tf.math import negative as negative
from mirrored.tf.math import not_equal as not_equal
from mirrored.tf.math import pow as pow
from mirrored.tf.math import reduce_all as reduce_all
from mirrored.tf.math import reduce_any as reduce_any
from mirrored.tf.math import reduce_logsumexp as reduce_logsumexp
from mirrored.tf.math import reduce_max as reduce_max
from mirrored.tf.math import reduce_mean as reduce_mean
from mirrored.tf.math import reduce_min as reduce_min
from mirrored.tf.math import reduce_prod as reduce_prod
from mirrored.tf.math import reduce_sum as reduce_sum
from mirrored.tf.math import round as round
from mirrored.tf.math import scalar_mul as scalar_mul
from mirrored.tf.math import sign as sign
from mirrored.tf.math import sin as sin
from mirrored.tf.math import sinh as sinh
from mirrored.tf.math import sqrt as sqrt
from mirrored.tf.math import square as square
from mirrored.tf.math import subtract as subtract
from mirrored.tf.math import tan as tan
from mirrored.tf.math import tanh as tanh
from mirrored.tf.nn import sigmoid as sigmoid
from mirrored.tf.signal import fftnd as fftnd
from mirrored.tf.signal import ifftnd as ifftnd
from mirrored.tf.signal import irfftnd as irfftnd
from mirrored.tf.signal import rfftnd as rfftnd
from mirrored.tf.strings import as_string as as_string
from mirrored.values.tensor_shape import TensorShape as TensorShape

__version__: str
bfloat16: DType
bool: DType
complex128: DType
complex64: DType
double: DType
float16: DType
float32: DType
float64: DType
half: DType
int16: DType
int32: DType
int64: DType
int8: DType
losses: Any
metrics: Any
newaxis: None
optimizers: Any
string: DType
uint16: DType
uint32: DType
uint64: DType
uint8: DType

class GradientTape(_GradientTape):
    def batch_jacobian(
        self,
        target: Array | ReadableVariable,
        source: Array | ReadableVariable,
        unconnected_gradients: UnconnectedGradients | str = ...,
        parallel_iterations: int | None = None,
        experimental_use_pfor: builtins.bool = True,
    ) -> Tensor: ...

class IndexedSlices(_IndexedSlices):
    def to_dense(self) -> Tensor: ...

class Module(_Module):
    @property
    def variables(self) -> builtins.tuple[Variable, ...]: ...
    @property
    def trainable_variables(self) -> builtins.tuple[Variable, ...]: ...
    @property
    def non_trainable_variables(self) -> builtins.tuple[Variable, ...]: ...
    @property
    def submodules(self) -> builtins.tuple[Module, ...]: ...

class Tensor(Array):
    def numpy(self) -> Any: ...
    def get_shape(self) -> TensorShape: ...
    def set_shape(self, shape: Any) -> None: ...
    def __getitem__(self, key: Any) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __add__(self, other: Any) -> Tensor: ...
    def __radd__(self, other: Any) -> Tensor: ...
    def __sub__(self, other: Any) -> Tensor: ...
    def __rsub__(self, other: Any) -> Tensor: ...
    def __mul__(self, other: Any) -> Tensor: ...
    def __rmul__(self, other: Any) -> Tensor: ...
    def __truediv__(self, other: Any) -> Tensor: ...
    def __rtruediv__(self, other: Any) -> Tensor: ...
    def __floordiv__(self, other: Any) -> Tensor: ...
    def __rfloordiv__(self, other: Any) -> Tensor: ...
    def __mod__(self, other: Any) -> Tensor: ...
    def __rmod__(self, other: Any) -> Tensor: ...
    def __pow__(self, other: Any) -> Tensor: ...
    def __rpow__(self, other: Any) -> Tensor: ...
    def __matmul__(self, other: Any) -> Tensor: ...
    def __rmatmul__(self, other: Any) -> Tensor: ...
    def __and__(self, other: Any) -> Tensor: ...
    def __rand__(self, other: Any) -> Tensor: ...
    def __or__(self, other: Any) -> Tensor: ...
    def __ror__(self, other: Any) -> Tensor: ...
    def __xor__(self, other: Any) -> Tensor: ...
    def __rxor__(self, other: Any) -> Tensor: ...
    def __lt__(self, other: Any) -> Tensor: ...
    def __le__(self, other: Any) -> Tensor: ...
    def __gt__(self, other: Any) -> Tensor: ...
    def __ge__(self, other: Any) -> Tensor: ...
    def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]

class TensorArray(_TensorArray):
    @classmethod
    def tree_unflatten(
        cls, kept: builtins.tuple[Any, builtins.tuple[int, ...]], children: builtins.tuple[Sequence[Any], Any]
    ) -> TensorArray: ...
    def size(self, name: str | None = None) -> Tensor: ...
    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray: ...
    def read(self, index: Any, name: str | None = None) -> Tensor: ...
    def stack(self, name: str | None = None) -> Tensor: ...
    def concat(self, name: str | None = None) -> Tensor: ...
    def gather(self, indices: Any, name: str | None = None) -> Tensor: ...
    def unstack(self, value: Any, name: str | None = None) -> TensorArray: ...
    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray: ...
    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray: ...
    def identity(self) -> TensorArray: ...

class Variable(_Variable):
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __init__(
        self,
        initial_value: Any = None,
        trainable: builtins.bool | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        synchronization: VariableSynchronization | str = ...,
        aggregation: Any = ...,
        shape: TensorShape | Sequence[int | None] | None = None,
        constraint: Callable[[Any], Any] | None = None,
    ) -> None: ...
    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor: ...
    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor: ...
    def read_value(self) -> Tensor: ...
    def is_initialized(self, name: str | None = None) -> Tensor: ...
    def value(self) -> Tensor: ...

class _Unique(NamedTuple):
    y: Tensor
    idx: Tensor

class _UniqueWithCounts(NamedTuple):
    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]

def argsort(
    values: Any,
    axis: SupportsIndex = -1,
    direction: str = "ASCENDING",
    stable: builtins.bool = False,
    name: str | None = None,
) -> Tensor: ...
def as_dtype(type_value: DTypeLike | None) -> DType: ...
def batch_to_space(input: Any, block_shape: StaticInts, crops: Any, name: str | None = None) -> Tensor: ...
def bitcast(input: Any, type: DTypeLike, name: str | None = None) -> Tensor: ...
def boolean_mask(tensor: Any, mask: Any, axis: SupportsIndex | None = None, name: str | None = None) -> Tensor: ...
def broadcast_dynamic_shape(shape_x: StaticInts, shape_y: StaticInts) -> Any: ...
def broadcast_static_shape(shape_x: ShapeLike, shape_y: ShapeLike) -> TensorShape: ...
def broadcast_to(input: Any, shape: StaticInts, name: str | None = None) -> Tensor: ...
def case(
    pred_fn_pairs: Mapping[Any, Callable[[], Any]] | Iterable[builtins.tuple[Any, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    exclusive: builtins.bool = False,
    strict: builtins.bool = False,
    name: str = "case",
) -> Any: ...
def cast(x: Any, dtype: DTypeLike, name: str | None = None) -> Tensor: ...
def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any | None = None, name: str | None = None
) -> builtins.tuple[list[Tensor | None], Tensor]: ...
def clip_by_norm(t: Any, clip_norm: Any, axes: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Tensor: ...
def complex(real: Any, imag: Any, name: str | None = None) -> Tensor: ...
def concat(values: Any, axis: SupportsIndex, name: str | None = None) -> Tensor: ...
def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: str | None = None) -> Any: ...
def constant(
    value: Any, dtype: DTypeLike | None = None, shape: StaticInts | None = None, name: str | None = None
) -> Tensor: ...
def convert_to_tensor(
    value: Any, dtype: DTypeLike | None = None, dtype_hint: DTypeLike | None = None, name: str | None = None
) -> Tensor: ...
def device(device_name: str | Device | LogicalDevice | DeviceSpec | None) -> AbstractContextManager[None]: ...
def dynamic_partition(
    data: Any, partitions: Any, num_partitions: SupportsIndex, name: str | None = None
) -> list[Tensor]: ...
def dynamic_stitch(indices: Iterable[Any], data: Iterable[Any], name: str | None = None) -> Tensor: ...
def einsum(equation: str, *inputs: Any, **kwargs: object) -> Tensor: ...
def ensure_shape(x: Any, shape: ShapeLike | None, name: str | None = None) -> Tensor: ...
def executing_eagerly() -> builtins.bool: ...
def expand_dims(input: Any, axis: SupportsIndex, name: str | None = None) -> Tensor: ...
def eye(
    num_rows: SupportsIndex,
    num_columns: SupportsIndex | None = None,
    batch_shape: StaticInts | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor: ...
def fill(dims: StaticInts, value: Any, name: str | None = None, layout: object = None) -> Tensor: ...
def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: builtins.bool = True,
    swap_memory: builtins.bool = False,
    name: str | None = None,
) -> Any: ...
def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: builtins.bool = True,
    swap_memory: builtins.bool = False,
    name: str | None = None,
) -> Any: ...
@overload
def function(
    func: None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: builtins.bool = True,
    jit_compile: builtins.bool | None = None,
    reduce_retracing: builtins.bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], Function]: ...
@overload
def function(
    func: Callable[..., Any],
    input_signature: Sequence[Any] | None = None,
    autograph: builtins.bool = True,
    jit_compile: builtins.bool | None = None,
    reduce_retracing: builtins.bool = False,
    **options: Any,
) -> Function: ...
def gather(
    params: Any,
    indices: Any,
    validate_indices: object = None,
    axis: SupportsIndex | None = None,
    batch_dims: SupportsIndex = 0,
    name: str | None = None,
) -> Tensor: ...
def gather_nd(
    params: Any, indices: Any, batch_dims: SupportsIndex = 0, name: str | None = None, bad_indices_policy: str = ""
) -> Tensor: ...
def get_current_name_scope() -> str: ...
def get_logger() -> Logger: ...
def get_static_value(tensor: object, partial: builtins.bool = False) -> Any: ...
def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]: ...
def group(*inputs: object, name: str | None = None) -> None: ...
def histogram_fixed_width(
    values: Any, value_range: Any, nbins: SupportsIndex = 100, dtype: DTypeLike = "int32", name: str | None = None
) -> Tensor: ...
def histogram_fixed_width_bins(
    values: Any, value_range: Any, nbins: SupportsIndex = 100, dtype: DTypeLike = "int32", name: str | None = None
) -> Tensor: ...
def identity(input: Any, name: str | None = None) -> Tensor: ...
def identity_n(input: Iterable[Any], name: str | None = None) -> list[Tensor]: ...
def init_scope() -> AbstractContextManager[None]: ...
def inside_function() -> builtins.bool: ...
def is_symbolic_tensor(tensor: object) -> builtins.bool: ...
def is_tensor(x: object) -> builtins.bool: ...
def linspace(start: Any, stop: Any, num: SupportsIndex, name: str | None = None, axis: SupportsIndex = 0) -> Tensor: ...
def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: object = None,
    parallel_iterations: object = None,
    back_prop: builtins.bool = True,
    swap_memory: builtins.bool = False,
    infer_shape: builtins.bool = True,
    name: str | None = None,
    fn_output_signature: object = None,
) -> Any: ...
def matmul(
    a: Any,
    b: Any,
    transpose_a: builtins.bool = False,
    transpose_b: builtins.bool = False,
    adjoint_a: builtins.bool = False,
    adjoint_b: builtins.bool = False,
    a_is_sparse: builtins.bool = False,
    b_is_sparse: builtins.bool = False,
    output_type: DTypeLike | None = None,
    grad_a: builtins.bool = False,
    grad_b: builtins.bool = False,
    name: str | None = None,
) -> Tensor: ...
def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> list[Tensor]: ...
def no_op(name: str | None = None) -> None: ...
def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: StaticInts | None = None,
    keepdims: builtins.bool | None = None,
    name: str | None = None,
) -> Tensor: ...
def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: DTypeLike | TensorSpec | Sequence[DTypeLike | TensorSpec] | None = None,
    stateful: builtins.bool = True,
    name: str | None = None,
) -> Any: ...
def one_hot(
    indices: Any,
    depth: SupportsIndex,
    on_value: Any | None = None,
    off_value: Any | None = None,
    axis: SupportsIndex | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor: ...
def ones(shape: StaticInts, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None) -> Tensor: ...
def ones_like(input: Any, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None) -> Tensor: ...
def pad(
    tensor: Any,
    paddings: Iterable[StaticInts],
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Tensor: ...
def print(
    *inputs: Any,
    output_stream: IO[str] | str | None = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None: ...
def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: DTypeLike | TensorSpec | Sequence[DTypeLike | TensorSpec] | None = None,
    name: str | None = None,
) -> Any: ...
def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: DTypeLike | None = None, name: str | None = None
) -> Tensor: ...
def rank(input: Any, name: str | None = None) -> Any: ...
def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]: ...
def repeat(input: Any, repeats: StaticInts, axis: SupportsIndex | None = None, name: str | None = None) -> Tensor: ...
def required_space_to_batch_paddings(
    input_shape: StaticInts, block_shape: StaticInts, base_paddings: Any | None = None, name: str | None = None
) -> builtins.tuple[Tensor, Tensor]: ...
def reshape(tensor: Any, shape: StaticInts, name: str | None = None) -> Tensor: ...
def reverse(tensor: Any, axis: StaticInts | None, name: str | None = None) -> Tensor: ...
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: SupportsIndex | None = None,
    batch_axis: SupportsIndex | None = None,
    name: str | None = None,
) -> Tensor: ...
def roll(input: Any, shift: Any, axis: StaticInts | None, name: str | None = None) -> Tensor: ...
def scan(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: builtins.bool = True,
    swap_memory: builtins.bool = False,
    infer_shape: builtins.bool = True,
    reverse: builtins.bool = False,
    name: str | None = None,
) -> Any: ...
def scatter_nd(indices: Any, updates: Any, shape: StaticInts, name: str | None = None) -> Tensor: ...
def searchsorted(
    sorted_sequence: Any, values: Any, side: str = "left", output_type: DTypeLike = "int32", name: str | None = None
) -> Tensor: ...
def sequence_mask(
    lengths: Any, maxlen: SupportsIndex | None = None, dtype: DTypeLike = "bool", name: str | None = None
) -> Tensor: ...
def shape(input: Any, out_type: DTypeLike = "int32", name: str | None = None) -> Any: ...
def shape_n(input: Iterable[Any], out_type: DTypeLike = "int32", name: str | None = None) -> list[Any]: ...
def size(input: Any, out_type: DTypeLike = "int32", name: str | None = None) -> Any: ...
def slice(input_: Any, begin: Any, size: StaticInts, name: str | None = None) -> Tensor: ...
def sort(values: Any, axis: SupportsIndex = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor: ...
def space_to_batch_nd(input: Any, block_shape: StaticInts, paddings: Any, name: str | None = None) -> Tensor: ...
def split(
    value: Any, num_or_size_splits: StaticInts, axis: SupportsIndex = 0, num: object = None, name: str | None = None
) -> list[Tensor]: ...
def squeeze(input: Any, axis: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def stack(values: Iterable[Any], axis: SupportsIndex = 0, name: str | None = None) -> Tensor: ...
def strided_slice(
    input_: Any,
    begin: StaticInts,
    end: StaticInts,
    strides: StaticInts | None = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
    name: str | None = None,
) -> Tensor: ...
def switch_case(
    branch_index: Any,
    branch_fns: Mapping[int, Callable[[], Any]] | Sequence[Callable[[], Any] | builtins.tuple[int, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any: ...
def tensor_scatter_nd_add(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor: ...
def tensor_scatter_nd_max(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor: ...
def tensor_scatter_nd_min(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor: ...
def tensor_scatter_nd_sub(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor: ...
def tensor_scatter_nd_update(tensor: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor: ...
def tensordot(
    a: Any,
    b: Any,
    axes: int | Sequence[int] | Sequence[Sequence[int]] | Array | ndarray[Any, Any],
    name: str | None = None,
) -> Tensor: ...
def tile(input: Any, multiples: StaticInts, name: str | None = None) -> Tensor: ...
def timestamp(name: str | None = None) -> float: ...
def transpose(
    a: Any, perm: StaticInts | None = None, conjugate: builtins.bool = False, name: str | None = None
) -> Tensor: ...
def truncatediv(x: Any, y: Any, name: str | None = None) -> Tensor: ...
def truncatemod(x: Any, y: Any, name: str | None = None) -> Tensor: ...
def tuple(tensors: Sequence[Any], control_inputs: object = None, name: str | None = None) -> list[Tensor]: ...
def type_spec_from_value(value: Any) -> TensorSpec: ...
def unique(x: Any, out_idx: DTypeLike = "int32", name: str | None = None) -> _Unique: ...
def unique_with_counts(x: Any, out_idx: DTypeLike = "int32", name: str | None = None) -> _UniqueWithCounts: ...
def unravel_index(indices: Any, dims: StaticInts, name: str | None = None) -> Tensor: ...
def unstack(value: Any, num: int | None = None, axis: SupportsIndex = 0, name: str | None = None) -> list[Tensor]: ...
def vectorized_map(
    fn: Callable[[Any], Any], elems: Any, fallback_to_while_loop: builtins.bool = True, warn: builtins.bool = True
) -> Any: ...
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor: ...
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    shape_invariants: object = None,
    parallel_iterations: int = 10,
    back_prop: builtins.bool = True,
    swap_memory: builtins.bool = False,
    maximum_iterations: SupportsIndex | None = None,
    name: str | None = None,
) -> Any: ...
def zeros(
    shape: StaticInts, dtype: DTypeLike = "float32", name: str | None = None, layout: object = None
) -> Tensor: ...
def zeros_like(
    input: Any, dtype: DTypeLike | None = None, name: str | None = None, layout: object = None
) -> Tensor: ...

constant_initializer = Constant
lin_space = linspace
matrix_square_root = sqrtm
ones_initializer = Ones
parallel_stack = stack
random_normal_initializer = RandomNormal
random_uniform_initializer = RandomUniform
realdiv = _divide
space_to_batch = space_to_batch_nd
truediv = _divide
zeros_initializer = Zeros
