"""Type stub of `tf.initializers`, written by tools/tf_stubs.py."""

from mirrored._typing import DTypeLike, StaticInts
from mirrored.tf import Tensor
from mirrored.tf._ops.initializers import Constant as _Constant
from mirrored.tf._ops.initializers import Identity as _Identity
from mirrored.tf._ops.initializers import Ones as _Ones
from mirrored.tf._ops.initializers import Orthogonal as _Orthogonal
from mirrored.tf._ops.initializers import RandomNormal as _RandomNormal
from mirrored.tf._ops.initializers import RandomUniform as _RandomUniform
from mirrored.tf._ops.initializers import TruncatedNormal as _TruncatedNormal
from mirrored.tf._ops.initializers import VarianceScaling as _VarianceScaling
from mirrored.tf._ops.initializers import Zeros as _Zeros

class Constant(_Constant):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class GlorotNormal(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class GlorotUniform(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class HeNormal(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class HeUniform(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class Identity(_Identity):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class LecunNormal(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class LecunUniform(VarianceScaling):
    def __init__(self, seed: int | None = None) -> None: ...
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class Ones(_Ones):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class Orthogonal(_Orthogonal):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class RandomNormal(_RandomNormal):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class RandomUniform(_RandomUniform):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class TruncatedNormal(_TruncatedNormal):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class VarianceScaling(_VarianceScaling):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

class Zeros(_Zeros):
    def __call__(
        self,
        shape: StaticInts,
        dtype: DTypeLike | None = "float32",
        *,
        partition_shape: StaticInts | None = None,
        partition_offset: StaticInts | None = None,
    ) -> Tensor: ...

constant = Constant
glorot_normal = GlorotNormal
glorot_uniform = GlorotUniform
he_normal = HeNormal
he_uniform = HeUniform
identity = Identity
lecun_normal = LecunNormal
lecun_uniform = LecunUniform
ones = Ones
orthogonal = Orthogonal
random_normal = RandomNormal
random_uniform = RandomUniform
truncated_normal = TruncatedNormal
variance_scaling = VarianceScaling
zeros = Zeros
