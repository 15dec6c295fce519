"""Type stub of `tf.compat.v1.debugging`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf.debugging import Assert as Assert
from mirrored.tf.debugging import assert_integer as assert_integer
from mirrored.tf.debugging import assert_proper_iterable as assert_proper_iterable
from mirrored.tf.debugging import assert_same_float_dtype as assert_same_float_dtype
from mirrored.tf.debugging import assert_shapes as assert_shapes
from mirrored.tf.debugging import assert_type as assert_type
from mirrored.tf.debugging import check_numerics as check_numerics
from mirrored.tf.debugging import disable_check_numerics as disable_check_numerics
from mirrored.tf.debugging import disable_traceback_filtering as disable_traceback_filtering
from mirrored.tf.debugging import enable_check_numerics as enable_check_numerics
from mirrored.tf.debugging import enable_traceback_filtering as enable_traceback_filtering
from mirrored.tf.debugging import get_log_device_placement as get_log_device_placement
from mirrored.tf.debugging import is_numeric_tensor as is_numeric_tensor
from mirrored.tf.debugging import is_traceback_filtering_enabled as is_traceback_filtering_enabled
from mirrored.tf.debugging import set_log_device_placement as set_log_device_placement

def assert_equal(*args: Any, **kwargs: Any) -> Any: ...
def assert_greater(*args: Any, **kwargs: Any) -> Any: ...
def assert_less(*args: Any, **kwargs: Any) -> Any: ...
