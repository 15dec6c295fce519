"""Arrays on disk: written by Orbax, or as an npz file when the program is ending."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mirrored.checkpoint import engine

ARRAYS = {
    "a/b.c": np.arange(6.0).reshape(2, 3),
    "scalar": np.array(3, np.int32),
    "bf": np.ones(3, ml_dtypes.bfloat16),
    "tiny": np.ones((2, 2), ml_dtypes.uint4),
    "empty": np.zeros((0, 3), np.float32),
    "ü %2F": np.array([True, False]),
}
WANTED = {name: (array.shape, str(array.dtype)) for name, array in ARRAYS.items()}


@pytest.mark.parametrize("plainly", [False, True])
def test_what_was_written_is_read(tmp_path, plainly, monkeypatch):
    if plainly:

        class Refusing:
            def __init__(self, handler):
                raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(engine.ocp, "Checkpointer", Refusing)
        monkeypatch.setattr(engine, "is_ending", lambda: True)
    engine.write_arrays(tmp_path / "arrays", ARRAYS)
    monkeypatch.undo()
    found = engine.read_arrays(tmp_path / "arrays", WANTED)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    some = engine.read_arrays(tmp_path / "arrays", {"scalar": WANTED["scalar"]})
    assert list(some) == ["scalar"]


def test_an_error_while_the_program_runs_is_raised(tmp_path, monkeypatch):
    class Refusing:
        def __init__(self, handler):
            raise RuntimeError("no")

    monkeypatch.setattr(engine.ocp, "Checkpointer", Refusing)
    with pytest.raises(RuntimeError, match="no"):
        engine.write_arrays(tmp_path / "arrays", ARRAYS)


def test_nothing_to_write(tmp_path):
    engine.write_arrays(tmp_path / "arrays", {"empty": ARRAYS["empty"]})
    assert list(tmp_path.iterdir()) == []
    assert engine.read_arrays(tmp_path / "arrays", {"empty": WANTED["empty"]})["empty"].shape == (0, 3)
