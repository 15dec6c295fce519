"""Type stub of `tf.random`, written by tools/tf_stubs.py."""

from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

from mirrored._typing import DTypeLike, StaticInts
from mirrored.tf import Tensor, Variable
from mirrored.tf._asking import Algorithm as Algorithm
from mirrored.tf._ops.generator import Generator as _Generator
from mirrored.tf.random import experimental as experimental

class Generator(_Generator):
    def next_key(self) -> Tensor: ...
    @property
    def state(self) -> Variable: ...
    @property
    def key(self) -> Tensor: ...
    def skip(self, delta: int) -> Tensor: ...
    def split(self, count: int = 1) -> list[Generator]: ...  # type: ignore[override]
    def make_seeds(self, count: int = 1) -> Tensor: ...
    def normal(
        self,
        shape: StaticInts,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor: ...
    def truncated_normal(
        self,
        shape: StaticInts,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor: ...
    def uniform(
        self,
        shape: StaticInts,
        minval: Any | None = 0,
        maxval: Any | None = None,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor: ...
    def uniform_full_int(self, shape: StaticInts, dtype: DTypeLike = "uint64", name: str | None = None) -> Tensor: ...
    def binomial(
        self, shape: StaticInts, counts: Any, probs: Any, dtype: DTypeLike = "int32", name: str | None = None
    ) -> Tensor: ...

class _Candidates(NamedTuple):
    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor

def all_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: SupportsIndex,
    unique: bool,
    seed: int | None = None,
    name: str | None = None,
) -> _Candidates: ...
def categorical(
    logits: Any,
    num_samples: SupportsIndex,
    dtype: DTypeLike = "int64",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def create_rng_state(seed: int, alg: object = "auto_select") -> Tensor: ...
def fixed_unigram_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: SupportsIndex,
    unique: bool,
    range_max: SupportsIndex,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | None = None,
    name: str | None = None,
) -> _Candidates: ...
def fold_in(seed: Any, data: Any, alg: object = "auto_select", name: str | None = None) -> Tensor: ...
def gamma(
    shape: StaticInts,
    alpha: Any,
    beta: Any | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def get_global_generator() -> Generator: ...
def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: SupportsIndex,
    unique: bool,
    range_max: SupportsIndex,
    seed: int | None = None,
    name: str | None = None,
) -> _Candidates: ...
def normal(
    shape: StaticInts,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def poisson(
    shape: StaticInts, lam: Any, dtype: DTypeLike = "float32", seed: int | None = None, name: str | None = None
) -> Tensor: ...
def set_global_generator(generator: Generator) -> None: ...
def set_seed(seed: int) -> None: ...
def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor: ...
def split(seed: Any, num: int = 2, alg: object = "auto_select", name: str | None = None) -> Tensor: ...
def stateless_binomial(
    shape: StaticInts, seed: Any, counts: Any, probs: Any, output_dtype: DTypeLike = "int32", name: str | None = None
) -> Tensor: ...
def stateless_categorical(
    logits: Any, num_samples: SupportsIndex, seed: Any, dtype: DTypeLike = "int64", name: str | None = None
) -> Tensor: ...
def stateless_gamma(
    shape: StaticInts,
    seed: Any,
    alpha: Any,
    beta: Any | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor: ...
def stateless_normal(
    shape: StaticInts,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> Tensor: ...
def stateless_poisson(
    shape: StaticInts, seed: Any, lam: Any, dtype: DTypeLike = "int32", name: str | None = None
) -> Tensor: ...
def stateless_shuffle(value: Any, seed: Any, alg: object = "auto_select", name: str | None = None) -> Tensor: ...
def stateless_truncated_normal(
    shape: StaticInts,
    seed: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> Tensor: ...
def stateless_uniform(
    shape: StaticInts,
    seed: Any,
    minval: Any | None = 0,
    maxval: Any | None = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    alg: object = "auto_select",
) -> Tensor: ...
def truncated_normal(
    shape: StaticInts,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def uniform(
    shape: StaticInts,
    minval: Any = 0,
    maxval: Any | None = None,
    dtype: DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor: ...
def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: SupportsIndex,
    unique: bool,
    range_max: SupportsIndex,
    seed: int | None = None,
    name: str | None = None,
) -> _Candidates: ...
