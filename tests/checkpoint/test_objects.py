"""Attributes of objects of subclasses of dict and list."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import save_as_by_earlier_version
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader


class ListHead(list[Any]):
    """A list of layers with attributes of its own."""


class DictHead(dict[str, Any]):
    """The same as a dict."""


class OrderedHead(OrderedDict[str, Any]):
    """The same as an ordered dict."""


class DequeHead(deque[Any]):
    """The same as a deque."""


class UserHead(UserDict[str, Any]):
    """The same as a dict that holds its items in an attribute."""


HEADS = [ListHead, DictHead, OrderedHead, DequeHead, UserHead]


def head(kind: Any, value: float, *, has_attributes: bool = True) -> Any:
    layer = mr.Variable(value)
    made = kind([layer] if issubclass(kind, (list, deque)) else {"layer": layer})
    if has_attributes:
        made.bias, made.steps, made.mean = mr.Variable(value + 1.0), int(value), np.full(2, value)
    return made


def only(items: Any) -> Any:
    return next(iter(items.values() if hasattr(items, "values") else items))


@pytest.mark.parametrize("is_part", [True, False])
@pytest.mark.parametrize("kind", HEADS)
def test_attributes_of_subclasses_of_list_and_dict_are_saved(kind: Any, is_part: bool, tmp_path: Path) -> None:
    """Only their items were saved, silently."""

    class Model:
        def __init__(self, value: float) -> None:
            self.head = head(kind, value)

    source, target = (head(kind, n) if is_part else Model(n) for n in (1.0, 5.0))
    path = Checkpoint(model=source).write(tmp_path / "c")
    Checkpoint(model=target).restore(path).assert_consumed()
    restored = target if is_part else target.head
    assert (float(only(restored).numpy()), float(restored.bias.numpy())) == (1.0, 2.0)
    assert restored.steps == 5, "a number of an object that holds variables is configuration"
    np.testing.assert_array_equal(restored.mean, [1.0, 1.0])


@pytest.mark.parametrize("kind", HEADS)
def test_numbers_of_a_list_or_dict_without_variables_are_state(kind: Any, tmp_path: Path) -> None:
    source, target = kind(), kind()
    source.best, target.best = 0.5, 9.0
    path = Checkpoint(w=mr.Variable(1.0), log=source).write(tmp_path / "c")
    Checkpoint(w=mr.Variable(0.0), log=target).restore(path).assert_consumed()
    assert target.best == 0.5


@pytest.mark.parametrize("kind", HEADS)
def test_a_checkpoint_of_an_earlier_version_has_no_attributes_of_lists_and_dicts(kind: Any, tmp_path: Path) -> None:
    save_as_by_earlier_version(Checkpoint(head=head(kind, 1.0, has_attributes=False)), tmp_path)
    target = head(kind, 5.0)
    assert CheckpointManager(Checkpoint(head=target), tmp_path).restore_latest() == 1
    assert (float(only(target).numpy()), float(target.bias.numpy())) == (1.0, 6.0)


def test_attributes_that_are_items_are_saved_once(tmp_path: Path) -> None:
    class Config(dict[str, Any]):
        def __init__(self, **items: Any) -> None:
            super().__init__(**items)
            self.__dict__ = self

    class Both(dict[str, Any]):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            self[name] = value

    both, other = Both(), DictHead(w=jnp.ones(2))
    both.w, other.w = np.ones(2), mr.Variable(3.0)
    path = Checkpoint(config=Config(w=np.ones(2)), both=both, other=other).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {"config/w", "both/w", "other/w", "other/%w"}


def test_a_checkpoint_of_an_earlier_version_has_other_recent_state(tmp_path: Path) -> None:
    """Variables of an optimizer's attributes were saved before the attributes of a dict and the parts of a part."""

    def parts(value: float, *, is_new: bool) -> dict[str, Any]:
        model, optimizer = mr.Variable(value), mr.optimizers.SGD(0.1)
        optimizer.scale = mr.Variable(value)  # type: ignore[attr-defined]
        inner = (
            Checkpoint(mr.tf.Module(), count=int(value), w=mr.Variable(value))
            if is_new
            else Checkpoint(w=mr.Variable(value))
        )
        outer, inside = type("Run", (), {})(), type("Log", (), {})()
        outer.log, inside.best = inside, value
        found = {"head": head(DictHead, value, has_attributes=is_new), "inner": inner, "run": outer}
        return {**found, "model": model, "optimizer": optimizer}

    save_as_by_earlier_version(Checkpoint(**parts(1.0, is_new=False)), tmp_path)
    target = parts(5.0, is_new=True)
    assert CheckpointManager(Checkpoint(**target), tmp_path).restore_latest() == 1
    assert (target["inner"].count, float(target["head"].bias.numpy()), target["run"].log.best) == (5, 6.0, 1.0)
    assert (float(target["optimizer"].scale.numpy()), float(target["inner"].w.numpy())) == (1.0, 1.0)


class Forwarding:
    """Has slots, and forwards other attributes to an object or a dict that it holds."""

    __slots__ = ("inner", "late")

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return self.inner[name] if isinstance(self.inner, dict) else getattr(self.inner, name)


def test_a_slot_that_is_not_assigned_is_not_looked_up_elsewhere(tmp_path: Path) -> None:
    inner = Forwarding({"w": mr.Variable(1.0)})
    path = Checkpoint(a=Forwarding({"w": mr.Variable(1.0)}), b=Forwarding(inner), inner=inner).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {"a/inner/w", "inner/inner/w"}
    inner.late = mr.Variable(2.0)
    path = Checkpoint(b=Forwarding(inner)).write(tmp_path / "d")
    assert set(CheckpointReader(path).names) == {"b/inner/inner/w", "b/inner/late"}


def test_an_error_in_a_property_of_a_checkpoint_is_shown() -> None:
    class WithProperties(Checkpoint):
        @property
        def best(self) -> Any:
            return [].best  # type: ignore[attr-defined]

    checkpoint = WithProperties(w=mr.Variable(1.0))
    with pytest.raises(AttributeError, match="'list' object has no attribute 'best'"):
        _ = checkpoint.best
    with pytest.raises(AttributeError, match="this Checkpoint has no part 'other'"):
        _ = checkpoint.other
