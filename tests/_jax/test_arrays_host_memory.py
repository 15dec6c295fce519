from __future__ import annotations

import mmap

import numpy as np
import pytest

from mirrored._jax.arrays import aligned_empty, expose, frozen, is_aligned, is_owned, owned


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_, "M8[s]"])
def test_what_it_allocates_is_aligned_and_owned_with_all_its_views(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype, type(array)) == (shape, np.dtype(dtype), np.ndarray)
    assert is_aligned(array)
    assert is_owned(array)
    assert is_owned(array.reshape(-1))
    assert is_owned(array[..., None].T)


def test_nothing_else_is_owned() -> None:
    plain = np.arange(12.0)
    read_only = plain.view()
    read_only.flags.writeable = False
    closed = np.arange(3)
    closed.flags.writeable = False
    for array in (plain, plain[2:], read_only, closed, np.frombuffer(mmap.mmap(-1, 64), np.uint8)):
        assert not is_owned(array)
        copy = owned(array)
        assert is_owned(copy)
        assert not np.shares_memory(copy, array)
        assert np.array_equal(copy, array)
        assert owned(copy) is copy


def test_writable_memory_that_user_code_has_seen_is_not_owned_any_more() -> None:
    array = aligned_empty((4,), np.float32)
    expose(array[1:])
    assert not is_owned(array)
    kept = frozen(aligned_empty((4,), np.float32))
    expose(kept[1:])
    assert is_owned(kept)


def test_frozen_arrays_stay_read_only() -> None:
    kept = frozen(np.zeros((2, 3)))
    for view in (kept, kept[0], kept.reshape(6)):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_what_is_no_array_stays() -> None:
    for value in (3, b"text", np.float32(1), None):
        assert owned(value) is value
