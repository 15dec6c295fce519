"""Objects that keep a dropped checkpoint alive while it waits for variables that they may create."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import types
import weakref
from typing import Any

import pytest
from flax import nnx

import mirrored as mr
from mirrored.checkpoint import Checkpoint


class Model:
    """A plain object that creates its variables after its construction."""

    def build(self) -> None:
        self.w = mr.Variable(1.0)


class Trainer:
    """A plain object whose model creates variables later."""

    def __init__(self) -> None:
        self.model = Model()
        self.copies = [self.model]


class Config:
    """A plain object that is completely restored at once."""

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = rate


def saved(tmp_path: Any, **others: object) -> str:
    model = Model()
    model.build()
    model.w.assign(5.0)
    return Checkpoint(model=model, **others).save(tmp_path / "c")


def restore(path: str, **parts: object) -> None:
    """Restores from a checkpoint, of which the program drops its `Checkpoint` object."""
    Checkpoint(**parts).restore(path).expect_partial()
    gc.collect()


def variables_in(value: object) -> list[mr.Variable]:
    """Collects variables as functions of programs do: from attributes and containers."""
    if isinstance(value, mr.Variable):
        return [value]
    if isinstance(value, dict):
        return [found for one in value.values() for found in variables_in(one)]
    if isinstance(value, (list, tuple)):
        return [found for one in value for found in variables_in(one)]
    return variables_in(vars(value)) if hasattr(value, "__dict__") else []


def test_an_object_that_is_completely_restored_is_not_changed(tmp_path):
    path, config = saved(tmp_path, config=Config(0.5)), Config()
    restore(path, model=Model(), config=config)
    assert json.dumps(vars(config)) == '{"rate": 0.5}'
    assert Config(**vars(config)).rate == 0.5


def test_an_object_that_several_models_share_keeps_none_of_them_alive(tmp_path):
    path, config = saved(tmp_path, config=Config()), Config()
    references = []
    for _ in range(2):
        model = Model()
        restore(path, model=model, config=config)
        references.append(weakref.ref(model))
        del model
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_variables_are_collected_from_the_attributes_of_an_object_that_waits(tmp_path):
    path, model = saved(tmp_path), Model()
    restore(path, model=model)
    assert variables_in(model) == []
    model.build()
    assert [float(one.numpy()) for one in variables_in(model)] == [5.0]
    assert vars(model).keys() == {"w"}


def test_a_copy_of_an_object_that_waits_keeps_no_checkpoint(tmp_path):
    path, model = saved(tmp_path), Model()
    restore(path, model=model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        restore(path, model=copied)
        pickle.dumps(copied)
        copied.build()
        assert float(copied.w.numpy()) == 5.0


@pytest.mark.parametrize("path", ["model", "copies"])
def test_an_object_waits_for_values_below_each_of_its_paths(tmp_path, path):
    source = Trainer()
    source.model.build()
    source.model.w.assign(5.0)
    # Saved under one path, the value is found under the other one, too.
    parts = {"trainer": source} if path == "model" else {"trainer": source, "first": source.copies}
    name, target = Checkpoint(**parts).save(tmp_path / "c"), Trainer()
    restore(name, **({"trainer": target} if path == "model" else {"first": target.copies}))
    target.model.build()
    assert float(target.model.w.numpy()) == 5.0


def test_a_root_object_without_variables_waits(tmp_path):
    model = Model()
    model.build()
    model.w.assign(5.0)
    path, target = Checkpoint(model).save(tmp_path / "c"), Model()
    Checkpoint(target).restore(path).expect_partial()
    gc.collect()
    target.build()
    assert float(target.w.numpy()) == 5.0
    assert vars(target).keys() == {"w"}


def test_namespaces_and_pytrees_get_no_attribute(tmp_path):
    path = saved(tmp_path, rest=types.SimpleNamespace(w=mr.Variable(1.0)), module=nnx.Dict(w=nnx.Param(1.0)))
    namespace, module = types.SimpleNamespace(), nnx.Dict()
    before = [dict(vars(one)) for one in (namespace, module)]
    checkpoint = Checkpoint(model=Model(), rest=namespace, module=module)
    checkpoint.restore(path).expect_partial()
    assert [dict(vars(one)) for one in (namespace, module)] == before
