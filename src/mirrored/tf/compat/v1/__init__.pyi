"""Type stub of `tf.compat.v1`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf import DeviceSpec as DeviceSpec
from mirrored.tf import DType as DType
from mirrored.tf import DType as _DType
from mirrored.tf import GradientTape as GradientTape
from mirrored.tf import IndexedSlices as IndexedSlices
from mirrored.tf import Module as Module
from mirrored.tf import Tensor as Tensor
from mirrored.tf import TensorArray as TensorArray
from mirrored.tf import TensorShape as TensorShape
from mirrored.tf import TensorSpec as TensorSpec
from mirrored.tf import UnconnectedGradients as UnconnectedGradients
from mirrored.tf import VariableAggregation as VariableAggregation
from mirrored.tf import VariableSynchronization as VariableSynchronization
from mirrored.tf import argsort as argsort
from mirrored.tf import as_dtype as as_dtype
from mirrored.tf import bitcast as bitcast
from mirrored.tf import broadcast_dynamic_shape as broadcast_dynamic_shape
from mirrored.tf import broadcast_static_shape as broadcast_static_shape
from mirrored.tf import broadcast_to as broadcast_to
from mirrored.tf import case as case
from mirrored.tf import cast as cast
from mirrored.tf import clip_by_global_norm as clip_by_global_norm
from mirrored.tf import clip_by_norm as clip_by_norm
from mirrored.tf import clip_by_value as clip_by_value
from mirrored.tf import complex as complex
from mirrored.tf import concat as concat
from mirrored.tf import custom_gradient as custom_gradient
from mirrored.tf import dynamic_partition as dynamic_partition
from mirrored.tf import dynamic_stitch as dynamic_stitch
from mirrored.tf import einsum as einsum
from mirrored.tf import ensure_shape as ensure_shape
from mirrored.tf import executing_eagerly as executing_eagerly
from mirrored.tf import eye as eye
from mirrored.tf import fill as fill
from mirrored.tf import foldl as foldl
from mirrored.tf import foldr as foldr
from mirrored.tf import function as function
from mirrored.tf import get_logger as get_logger
from mirrored.tf import get_static_value as get_static_value
from mirrored.tf import grad_pass_through as grad_pass_through
from mirrored.tf import group as group
from mirrored.tf import histogram_fixed_width as histogram_fixed_width
from mirrored.tf import histogram_fixed_width_bins as histogram_fixed_width_bins
from mirrored.tf import identity as identity
from mirrored.tf import identity_n as identity_n
from mirrored.tf import init_scope as init_scope
from mirrored.tf import is_symbolic_tensor as is_symbolic_tensor
from mirrored.tf import is_tensor as is_tensor
from mirrored.tf import linspace as _linspace
from mirrored.tf import linspace as linspace
from mirrored.tf import map_fn as map_fn
from mirrored.tf import matmul as matmul
from mirrored.tf import meshgrid as meshgrid
from mirrored.tf import no_op as no_op
from mirrored.tf import numpy_function as numpy_function
from mirrored.tf import one_hot as one_hot
from mirrored.tf import ones as ones
from mirrored.tf import print as print
from mirrored.tf import py_function as py_function
from mirrored.tf import range as range
from mirrored.tf import rank as rank
from mirrored.tf import recompute_grad as recompute_grad
from mirrored.tf import repeat as repeat
from mirrored.tf import required_space_to_batch_paddings as required_space_to_batch_paddings
from mirrored.tf import reshape as reshape
from mirrored.tf import reverse as reverse
from mirrored.tf import roll as roll
from mirrored.tf import scan as scan
from mirrored.tf import scatter_nd as scatter_nd
from mirrored.tf import searchsorted as searchsorted
from mirrored.tf import sequence_mask as sequence_mask
from mirrored.tf import shape_n as shape_n
from mirrored.tf import slice as slice
from mirrored.tf import sort as sort
from mirrored.tf import space_to_batch_nd as space_to_batch_nd
from mirrored.tf import split as split
from mirrored.tf import stack as _stack
from mirrored.tf import stack as stack
from mirrored.tf import stop_gradient as stop_gradient
from mirrored.tf import strided_slice as strided_slice
from mirrored.tf import switch_case as switch_case
from mirrored.tf import tensor_scatter_nd_add as tensor_scatter_nd_add
from mirrored.tf import tensor_scatter_nd_max as tensor_scatter_nd_max
from mirrored.tf import tensor_scatter_nd_min as tensor_scatter_nd_min
from mirrored.tf import tensor_scatter_nd_sub as tensor_scatter_nd_sub
from mirrored.tf import tensor_scatter_nd_update as tensor_scatter_nd_update
from mirrored.tf import tensordot as tensordot
from mirrored.tf import tile as tile
from mirrored.tf import timestamp as timestamp
from mirrored.tf import truncatediv as truncatediv
from mirrored.tf import truncatemod as truncatemod
from mirrored.tf import type_spec_from_value as type_spec_from_value
from mirrored.tf import unique as unique
from mirrored.tf import unique_with_counts as unique_with_counts
from mirrored.tf import unravel_index as unravel_index
from mirrored.tf import unstack as unstack
from mirrored.tf import variable_creator_scope as variable_creator_scope
from mirrored.tf import vectorized_map as vectorized_map
from mirrored.tf import zeros as zeros
from mirrored.tf._compat import ConfigProto as ConfigProto
from mirrored.tf.compat.v1 import autograph as autograph
from mirrored.tf.compat.v1 import bitwise as bitwise
from mirrored.tf.compat.v1 import config as config
from mirrored.tf.compat.v1 import data as data
from mirrored.tf.compat.v1 import debugging as debugging
from mirrored.tf.compat.v1 import distribute as distribute
from mirrored.tf.compat.v1 import dtypes as dtypes
from mirrored.tf.compat.v1 import errors as errors
from mirrored.tf.compat.v1 import gfile as gfile
from mirrored.tf.compat.v1 import image as image
from mirrored.tf.compat.v1 import io as io
from mirrored.tf.compat.v1 import linalg as linalg
from mirrored.tf.compat.v1 import logging as logging
from mirrored.tf.compat.v1 import losses as losses
from mirrored.tf.compat.v1 import math as math
from mirrored.tf.compat.v1 import nest as nest
from mirrored.tf.compat.v1 import nn as nn
from mirrored.tf.compat.v1 import random as random
from mirrored.tf.compat.v1 import saved_model as saved_model
from mirrored.tf.compat.v1 import signal as signal
from mirrored.tf.compat.v1 import strings as strings
from mirrored.tf.compat.v1 import train as train
from mirrored.tf.compat.v1 import types as types
from mirrored.tf.compat.v1 import version as version
from mirrored.tf.debugging import Assert as Assert
from mirrored.tf.dtypes import saturate_cast as saturate_cast
from mirrored.tf.image import random_crop as random_crop
from mirrored.tf.linalg import band_part, det, inv, solve, sqrtm, tensor_diag, tensor_diag_part
from mirrored.tf.linalg import cholesky as cholesky
from mirrored.tf.linalg import cross as cross
from mirrored.tf.linalg import diag as _diag
from mirrored.tf.linalg import diag_part as _diag_part
from mirrored.tf.linalg import global_norm as global_norm
from mirrored.tf.linalg import matrix_transpose as matrix_transpose
from mirrored.tf.linalg import qr as qr
from mirrored.tf.linalg import svd as svd
from mirrored.tf.linalg import trace as trace
from mirrored.tf.math import abs as abs
from mirrored.tf.math import acos as acos
from mirrored.tf.math import acosh as acosh
from mirrored.tf.math import add as add
from mirrored.tf.math import add_n as add_n
from mirrored.tf.math import angle as angle
from mirrored.tf.math import asin as asin
from mirrored.tf.math import asinh as asinh
from mirrored.tf.math import atan as atan
from mirrored.tf.math import atan2 as atan2
from mirrored.tf.math import atanh as atanh
from mirrored.tf.math import betainc as betainc
from mirrored.tf.math import ceil as ceil
from mirrored.tf.math import conj as conj
from mirrored.tf.math import cos as cos
from mirrored.tf.math import cosh as cosh
from mirrored.tf.math import cumprod as cumprod
from mirrored.tf.math import cumsum as cumsum
from mirrored.tf.math import digamma as digamma
from mirrored.tf.math import divide as _divide
from mirrored.tf.math import divide as divide
from mirrored.tf.math import divide_no_nan
from mirrored.tf.math import equal as equal
from mirrored.tf.math import erf as erf
from mirrored.tf.math import erfc as erfc
from mirrored.tf.math import exp as exp
from mirrored.tf.math import expm1 as expm1
from mirrored.tf.math import floor as floor
from mirrored.tf.math import floordiv as floordiv
from mirrored.tf.math import floormod as _floormod
from mirrored.tf.math import floormod as floormod
from mirrored.tf.math import greater as greater
from mirrored.tf.math import greater_equal as greater_equal
from mirrored.tf.math import igamma as igamma
from mirrored.tf.math import igammac as igammac
from mirrored.tf.math import imag as imag
from mirrored.tf.math import invert_permutation as invert_permutation
from mirrored.tf.math import is_finite as is_finite
from mirrored.tf.math import is_inf as is_inf
from mirrored.tf.math import is_nan as is_nan
from mirrored.tf.math import lbeta as lbeta
from mirrored.tf.math import less as less
from mirrored.tf.math import less_equal as less_equal
from mirrored.tf.math import lgamma as lgamma
from mirrored.tf.math import log as log
from mirrored.tf.math import log1p as log1p
from mirrored.tf.math import log_sigmoid as log_sigmoid
from mirrored.tf.math import logical_and as logical_and
from mirrored.tf.math import logical_not as logical_not
from mirrored.tf.math import logical_or as logical_or
from mirrored.tf.math import logical_xor as logical_xor
from mirrored.tf.math import maximum as maximum
from mirrored.tf.math import minimum as minimum
from mirrored.tf.math import multiply as multiply
from mirrored.tf.math import negative as negative
from mirrored.tf.math import not_equal as not_equal
from mirrored.tf.math import polygamma as polygamma
from mirrored.tf.math import pow as pow
from mirrored.tf.math import real as real
from mirrored.tf.math import reciprocal as reciprocal
from mirrored.tf.math import rint as rint
from mirrored.tf.math import round as round
from mirrored.tf.math import rsqrt as rsqrt
from mirrored.tf.math import scalar_mul as scalar_mul
from mirrored.tf.math import segment_max as segment_max
from mirrored.tf.math import segment_mean as segment_mean
from mirrored.tf.math import segment_min as segment_min
from mirrored.tf.math import segment_prod as segment_prod
from mirrored.tf.math import segment_sum as segment_sum
from mirrored.tf.math import sign as sign
from mirrored.tf.math import sin as sin
from mirrored.tf.math import sinh as sinh
from mirrored.tf.math import sqrt as sqrt
from mirrored.tf.math import square as square
from mirrored.tf.math import squared_difference as squared_difference
from mirrored.tf.math import subtract as subtract
from mirrored.tf.math import tan as tan
from mirrored.tf.math import tanh as tanh
from mirrored.tf.math import unsorted_segment_max as unsorted_segment_max
from mirrored.tf.math import unsorted_segment_mean as unsorted_segment_mean
from mirrored.tf.math import unsorted_segment_min as unsorted_segment_min
from mirrored.tf.math import unsorted_segment_prod as unsorted_segment_prod
from mirrored.tf.math import unsorted_segment_sum as unsorted_segment_sum
from mirrored.tf.math import zeta as zeta
from mirrored.tf.nn import sigmoid as sigmoid
from mirrored.tf.random import normal, set_seed, shuffle, uniform
from mirrored.tf.random import truncated_normal as truncated_normal
from mirrored.tf.signal import fft as fft
from mirrored.tf.signal import fftnd as fftnd
from mirrored.tf.signal import ifft as ifft
from mirrored.tf.signal import ifftnd as ifftnd
from mirrored.tf.signal import irfftnd as irfftnd
from mirrored.tf.signal import rfftnd as rfftnd
from mirrored.tf.strings import as_string as as_string

bfloat16: _DType
bool: _DType
complex128: _DType
complex64: _DType
double: _DType
float16: _DType
float32: _DType
float64: _DType
half: _DType
int16: _DType
int32: _DType
int64: _DType
int8: _DType
newaxis: None
string: _DType
uint16: _DType
uint32: _DType
uint64: _DType
uint8: _DType

def arg_max(*args: Any, **kwargs: Any) -> Any: ...
def arg_min(*args: Any, **kwargs: Any) -> Any: ...
def argmax(*args: Any, **kwargs: Any) -> Any: ...
def argmin(*args: Any, **kwargs: Any) -> Any: ...
def assert_equal(*args: Any, **kwargs: Any) -> Any: ...
def assert_greater(*args: Any, **kwargs: Any) -> Any: ...
def assert_less(*args: Any, **kwargs: Any) -> Any: ...
def boolean_mask(*args: Any, **kwargs: Any) -> Any: ...
def constant(*args: Any, **kwargs: Any) -> Any: ...
def disable_eager_execution() -> None: ...
def enable_eager_execution() -> None: ...
def expand_dims(*args: Any, **kwargs: Any) -> Any: ...
def gather(*args: Any, **kwargs: Any) -> Any: ...
def global_variables_initializer(name: str | None = None) -> None: ...
def norm(*args: Any, **kwargs: Any) -> Any: ...
def ones_like(*args: Any, **kwargs: Any) -> Any: ...
def pad(*args: Any, **kwargs: Any) -> Any: ...
def reduce_all(*args: Any, **kwargs: Any) -> Any: ...
def reduce_any(*args: Any, **kwargs: Any) -> Any: ...
def reduce_logsumexp(*args: Any, **kwargs: Any) -> Any: ...
def reduce_max(*args: Any, **kwargs: Any) -> Any: ...
def reduce_mean(*args: Any, **kwargs: Any) -> Any: ...
def reduce_min(*args: Any, **kwargs: Any) -> Any: ...
def reduce_prod(*args: Any, **kwargs: Any) -> Any: ...
def reduce_sum(*args: Any, **kwargs: Any) -> Any: ...
def shape(*args: Any, **kwargs: Any) -> Any: ...
def size(*args: Any, **kwargs: Any) -> Any: ...
def squeeze(*args: Any, **kwargs: Any) -> Any: ...
def to_bfloat16(x: Any, name: str | None = None) -> Any: ...
def to_complex64(x: Any, name: str | None = None) -> Any: ...
def to_double(x: Any, name: str | None = None) -> Any: ...
def to_float(x: Any, name: str | None = None) -> Any: ...
def to_int32(x: Any, name: str | None = None) -> Any: ...
def to_int64(x: Any, name: str | None = None) -> Any: ...
def transpose(*args: Any, **kwargs: Any) -> Any: ...
def where(condition: Any, x: Any | None = None, y: Any | None = None, name: str | None = None) -> Any: ...
def zeros_like(*args: Any, **kwargs: Any) -> Any: ...

diag = tensor_diag
diag_part = tensor_diag_part
disable_v2_behavior = disable_eager_execution
div_no_nan = divide_no_nan
enable_resource_variables = enable_eager_execution
enable_v2_behavior = enable_eager_execution
enable_v2_tensorshape = enable_eager_execution
lin_space = _linspace
local_variables_initializer = global_variables_initializer
matrix_band_part = band_part
matrix_determinant = det
matrix_diag = _diag
matrix_diag_part = _diag_part
matrix_inverse = inv
matrix_solve = solve
matrix_square_root = sqrtm
mod = _floormod
parallel_stack = _stack
random_normal = normal
random_shuffle = shuffle
random_uniform = uniform
realdiv = _divide
set_random_seed = set_seed
truediv = _divide
