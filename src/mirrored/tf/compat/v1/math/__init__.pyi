"""Type stub of `tf.compat.v1.math`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf.compat.v1.math import special as special
from mirrored.tf.math import abs as abs
from mirrored.tf.math import acos as acos
from mirrored.tf.math import acosh as acosh
from mirrored.tf.math import add as add
from mirrored.tf.math import add_n as _add_n
from mirrored.tf.math import add_n as add_n
from mirrored.tf.math import angle as angle
from mirrored.tf.math import approx_max_k as approx_max_k
from mirrored.tf.math import approx_min_k as approx_min_k
from mirrored.tf.math import asin as asin
from mirrored.tf.math import asinh as asinh
from mirrored.tf.math import atan as atan
from mirrored.tf.math import atan2 as atan2
from mirrored.tf.math import atanh as atanh
from mirrored.tf.math import bessel_i0 as bessel_i0
from mirrored.tf.math import bessel_i0e as bessel_i0e
from mirrored.tf.math import bessel_i1 as bessel_i1
from mirrored.tf.math import bessel_i1e as bessel_i1e
from mirrored.tf.math import betainc as betainc
from mirrored.tf.math import ceil as ceil
from mirrored.tf.math import conj as conj
from mirrored.tf.math import cos as cos
from mirrored.tf.math import cosh as cosh
from mirrored.tf.math import cumprod as cumprod
from mirrored.tf.math import cumsum as cumsum
from mirrored.tf.math import cumulative_logsumexp as cumulative_logsumexp
from mirrored.tf.math import digamma as digamma
from mirrored.tf.math import divide as _divide
from mirrored.tf.math import divide as divide
from mirrored.tf.math import divide_no_nan as divide_no_nan
from mirrored.tf.math import equal as equal
from mirrored.tf.math import erf as erf
from mirrored.tf.math import erfc as erfc
from mirrored.tf.math import erfcinv as erfcinv
from mirrored.tf.math import erfinv as erfinv
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
from mirrored.tf.math import is_non_decreasing as is_non_decreasing
from mirrored.tf.math import is_strictly_increasing as is_strictly_increasing
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
from mirrored.tf.math import multiply_no_nan as multiply_no_nan
from mirrored.tf.math import ndtri as ndtri
from mirrored.tf.math import negative as negative
from mirrored.tf.math import nextafter as nextafter
from mirrored.tf.math import not_equal as not_equal
from mirrored.tf.math import polygamma as polygamma
from mirrored.tf.math import polyval as polyval
from mirrored.tf.math import pow as pow
from mirrored.tf.math import real as real
from mirrored.tf.math import reciprocal as reciprocal
from mirrored.tf.math import reciprocal_no_nan as reciprocal_no_nan
from mirrored.tf.math import reduce_euclidean_norm as reduce_euclidean_norm
from mirrored.tf.math import reduce_std as reduce_std
from mirrored.tf.math import reduce_variance as reduce_variance
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
from mirrored.tf.math import top_k as top_k
from mirrored.tf.math import unsorted_segment_max as unsorted_segment_max
from mirrored.tf.math import unsorted_segment_mean as unsorted_segment_mean
from mirrored.tf.math import unsorted_segment_min as unsorted_segment_min
from mirrored.tf.math import unsorted_segment_prod as unsorted_segment_prod
from mirrored.tf.math import unsorted_segment_sqrt_n as unsorted_segment_sqrt_n
from mirrored.tf.math import unsorted_segment_sum as unsorted_segment_sum
from mirrored.tf.math import xdivy as xdivy
from mirrored.tf.math import xlog1py as xlog1py
from mirrored.tf.math import xlogy as xlogy
from mirrored.tf.math import zero_fraction as zero_fraction
from mirrored.tf.math import zeta as zeta
from mirrored.tf.nn import l2_normalize as l2_normalize
from mirrored.tf.nn import sigmoid as sigmoid
from mirrored.tf.nn import softplus as softplus
from mirrored.tf.nn import softsign as softsign

def argmax(*args: Any, **kwargs: Any) -> Any: ...
def argmin(*args: Any, **kwargs: Any) -> Any: ...
def log_softmax(*args: Any, **kwargs: Any) -> Any: ...
def reduce_all(*args: Any, **kwargs: Any) -> Any: ...
def reduce_any(*args: Any, **kwargs: Any) -> Any: ...
def reduce_logsumexp(*args: Any, **kwargs: Any) -> Any: ...
def reduce_max(*args: Any, **kwargs: Any) -> Any: ...
def reduce_mean(*args: Any, **kwargs: Any) -> Any: ...
def reduce_min(*args: Any, **kwargs: Any) -> Any: ...
def reduce_prod(*args: Any, **kwargs: Any) -> Any: ...
def reduce_sum(*args: Any, **kwargs: Any) -> Any: ...
def softmax(*args: Any, **kwargs: Any) -> Any: ...

accumulate_n = _add_n
mod = _floormod
truediv = _divide
