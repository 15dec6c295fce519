"""Numbers and arrays without dims: a restore returns the type and the bits that were saved."""

import collections
import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointReader
from mirrored.checkpoint.json_state import to_json
from mirrored.checkpoint.manifest import FILE, _crc
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.errors import CheckpointMismatchError

BOOLS = [True, np.bool_(True)]
INTS = [3, 2**40, 2**70, np.int32(7), np.int64(2**40), np.uint8(200)]
FLOATS = [0.1, float("-inf"), -0.0, 3e5, np.float16(0.1), np.float32(0.1), np.float64(0.1), ml_dtypes.bfloat16(0.1)]
COMPLEXES = [1 + 2j, np.complex64(0.1j)]
ARRAYS = [
    np.asarray(np.float32(0.1)), np.asarray(0.1), np.asarray(np.int32(7)),
    jnp.float32(0.1), jnp.asarray(0.1), jnp.asarray(7), jnp.bfloat16(0.1), jnp.bool_(True),
]  # fmt: skip
SAVED = [*BOOLS, *INTS, *FLOATS, *COMPLEXES, *ARRAYS]
PYTHON_NUMBERS = [False, 0, 0.0, 0j]
SCALARS = [np.bool_(False), np.int32(0), np.uint8(0), np.float16(0), np.float32(np.inf), np.float64(0), np.complex64(0)]
KINDS = (np.bool_, np.integer, np.floating, np.complexfloating)


def rank(value):
    dtype = np.dtype(type(value)) if isinstance(value, (bool, int, float, complex)) else value.dtype
    return next(number for number, kind in enumerate(KINDS) if jnp.issubdtype(dtype, kind))


def assert_same(found, saved):
    assert type(found) is type(saved), (found, saved)
    if isinstance(saved, (bool, int, float, complex)) and not isinstance(saved, np.generic):
        assert repr(found) == repr(saved)
        return
    assert found.dtype == saved.dtype
    assert getattr(found, "weak_type", False) == getattr(saved, "weak_type", False)
    assert np.asarray(found).tobytes() == np.asarray(saved).tobytes()


class Holder:
    def __init__(self, values):
        for number, value in enumerate(values):
            setattr(self, f"v{number}", value)

    def values(self):
        return [getattr(self, name) for name in sorted(vars(self), key=lambda name: int(name[1:]))]


class Pair(NamedTuple):
    one: object
    two: object


@dataclasses.dataclass
class Fields:
    one: object
    two: object


def parts(values):
    names = [f"p{number}" for number in range(len(values))]
    return {
        **dict(zip(names, values, strict=True)), "holder": Holder(values), "list": list(values),
        "deque": collections.deque(values), "dict": dict(zip(names, values, strict=True)), "pair": Pair(*values[:2]),
        "fields": Fields(*values[:2]),
    }  # fmt: skip


def values_of(checkpoint, count):
    return {
        "part": [getattr(checkpoint, f"p{number}") for number in range(count)], "attribute": checkpoint.holder.values(),
        "list": list(checkpoint.list), "deque": list(checkpoint.deque), "dict": list(checkpoint.dict.values()),
        "namedtuple": [*checkpoint.pair], "dataclass": [checkpoint.fields.one, checkpoint.fields.two],
    }  # fmt: skip


def initial_copy(initial):
    return initial.copy() if isinstance(initial, np.ndarray) else initial


@pytest.mark.first(11)
@pytest.mark.parametrize("initial", [*PYTHON_NUMBERS, *SCALARS], ids=lambda value: f"{type(value).__name__}-{value}")
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_number_gets_the_type_and_bits_that_were_saved(tmp_path, initial, where):
    saved = [one for one in SAVED if not isinstance(initial, np.generic) or rank(one) <= rank(initial)]
    first = Checkpoint(**parts(saved))
    second = Checkpoint(**parts([initial] * len(saved)))
    if where == "disk":
        second.restore(first.write(tmp_path / "c")).assert_consumed()
    else:
        head, data = packed(begin_snapshot(first).finish())
        restore_snapshot(second, unpacked(head, np.concatenate([*data, np.zeros(0, np.uint8)])))
    for found in values_of(second, len(saved)).values():
        for one, expected in zip(found, saved, strict=False):
            assert_same(one, expected)


@pytest.mark.parametrize(
    "initial", [np.asarray(np.float32(0)), jnp.float32(np.inf), jnp.asarray(0.0)], ids=["numpy", "jax", "weak jax"]
)
def test_an_array_without_dims_gets_the_number_that_was_saved(tmp_path, initial):
    arrays = [one for one in ARRAYS if one.dtype == np.float32]
    saved = [*BOOLS, *INTS, *FLOATS, *arrays]
    checkpoint = Checkpoint(**parts([initial_copy(initial) for _ in saved]))
    checkpoint.restore(Checkpoint(**parts(saved)).write(tmp_path / "c")).assert_consumed()
    for found in values_of(checkpoint, len(saved)).values():
        for one, expected in zip(found, saved, strict=False):
            assert_same(one, expected)


@pytest.mark.parametrize(
    ("saved", "initial"),
    [(jnp.float32(0.5), np.int32(0)), (0.5, jnp.int32(0)), (jnp.ones(1), 0.0), (1.0, jnp.ones(1)),
     (jax.random.key(0), 0), (0, jax.random.key(0)), (mr.Variable(0), 0), (0, mr.Variable(0))],
)  # fmt: skip
def test_another_kind_is_refused(tmp_path, saved, initial):
    checkpoint = Checkpoint(best=initial)
    with pytest.raises(CheckpointMismatchError, match="in the checkpoint, .* in the program"):
        checkpoint.restore(Checkpoint(best=saved).write(tmp_path / "c"))
    assert checkpoint.best is initial


def test_numbers_that_a_restore_adds_to_lists_and_dicts_keep_their_types(tmp_path):
    values = [np.float32(0.1), 0.1, np.int32(7)]
    path = Checkpoint(
        log=list(values), latest=collections.deque(values), best=dict(enumerate(values)),
        counts=collections.Counter({"a": np.int64(3)}),
    ).write(tmp_path / "c")  # fmt: skip
    checkpoint = Checkpoint(log=[], latest=collections.deque(maxlen=9), best={}, counts=collections.Counter())
    checkpoint.restore(path).assert_consumed()
    for found in (checkpoint.log, checkpoint.latest, checkpoint.best.values()):
        for one, expected in zip(found, values, strict=True):
            assert_same(one, expected)
    assert_same(checkpoint.counts["a"], np.int64(3))
    assert_same(CheckpointReader(path).read("log/0"), np.float32(0.1))


def test_a_checkpoint_of_an_earlier_version_has_no_types(tmp_path):
    path = Checkpoint(a=np.float32(0.1), b=0.1, c=np.float32(0.1), d=jnp.float32(0.1)).write(tmp_path / "c")
    file = tmp_path / "c" / FILE
    head = json.loads(file.read_text())
    for leaf in head["contents"]["leaves"].values():
        leaf["dtype"] = "" if leaf["kind"] == "number" else leaf["dtype"]
        leaf.pop("array_type", None)
    head["checksum"] = _crc(to_json(head["contents"]).encode())
    file.write_text(json.dumps(head))
    checkpoint = Checkpoint(a=0.0, b=np.float32(0), c=np.float64(0), d=jnp.asarray(0.0))
    checkpoint.restore(path).assert_consumed()
    assert_same(checkpoint.a, float(np.float32(0.1)))
    assert_same(checkpoint.b, np.float32(0.1))
    assert_same(checkpoint.c, np.float64(np.float32(0.1)))
    assert_same(checkpoint.d, jnp.asarray(0.1))
