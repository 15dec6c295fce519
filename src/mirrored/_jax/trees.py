"""Flattens, maps and rebuilds pytrees whose dicts keep the order of their keys.

JAX flattens a dict in the order of its sorted keys and rebuilds it in that order, too. A function that returns
``{"loss": ..., "accuracy": ...}`` would therefore return the accuracy first, and ``loss, accuracy = result.values()``
would exchange the two without an error. TensorFlow's `tf.nest` keeps the order of insertion, and so does this module.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeGuard

import jax

from mirrored._typing import PyTree


class Structure:
    """A `jax.tree_util.PyTreeDef` and the order of the keys of its dicts.

    Structures are equal if their treedefs are: the order of keys does not distinguish them. Dicts inside nodes of
    registered classes (``TrainState.params``) have their keys sorted, as in JAX.

    Args:
        treedef: The treedef of `value`.
        value: The pytree whose dicts define the order. No reference to it is kept.
    """

    __slots__ = ("_order", "treedef")

    def __init__(self, treedef: jax.tree_util.PyTreeDef, value: PyTree) -> None:
        self.treedef = treedef
        self._order = _order_of(value)

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return int(self.treedef.num_leaves)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Rebuilds a pytree from its leaves, which have the order of JAX's flattening."""
        return _arranged(self._order, jax.tree_util.tree_unflatten(self.treedef, leaves))

    def __eq__(self, other: object) -> bool:
        """Returns whether the treedefs are equal; `other` may be a treedef."""
        return bool(self.treedef == (other.treedef if isinstance(other, Structure) else other))

    def __hash__(self) -> int:
        """Returns the hash of the treedef."""
        return hash(self.treedef)

    def __repr__(self) -> str:
        """Returns the representation of the treedef."""
        return repr(self.treedef)


def tree_flatten(value: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """Flattens a pytree as `jax.tree.flatten` does; the structure rebuilds dicts with the order of their keys."""
    leaves, treedef = jax.tree_util.tree_flatten(value, is_leaf=is_leaf)
    return leaves, Structure(treedef, value)


def tree_map(
    function: Callable[..., Any], value: PyTree, *rest: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Maps a function over the leaves of pytrees as `jax.tree.map` does; dicts keep the order of those in `value`."""
    return in_order_of(value, jax.tree.map(function, value, *rest, is_leaf=is_leaf))


def in_order_of(like: PyTree, value: PyTree) -> Any:
    """Returns a pytree whose dicts have their keys in the order of those of `like`, which has the same structure.

    It does not look into containers in `like` for which `value` has a leaf, such as a long list of numbers.
    """
    if isinstance(value, dict):
        if type(like) is not type(value) or type(value) not in _DICTS or value.keys() != like.keys():
            return value
        parts = {key: in_order_of(part, value[key]) for key, part in like.items()}
        return _dict_like(value, parts)
    if _is_sequence(value) and type(like) is type(value) and len(like) == len(value):
        for part in value:
            if isinstance(part, _CONTAINERS):
                break
        else:  # only leaves, as in most elements of datasets
            return value
        elements = list(map(in_order_of, like, value))
        if all(one is two for one, two in zip(elements, value, strict=True)):
            return value
        return _remade(value, elements)
    return value


# The order of a pytree's keys: a dict from the keys of a dict, or a list for the elements of a list or tuple, to their
# orders. None stands for a part in which all keys are sorted, such as a leaf.
_Order = dict[Any, Any] | list[Any] | None


def _order_of(value: PyTree) -> _Order:
    if isinstance(value, dict):
        if type(value) not in _DICTS:
            return None
        keys = list(value)
        inner = _orders_of(value.values())
        return dict(zip(keys, inner, strict=True)) if not _are_sorted(keys) or _any(inner) else None
    if _is_sequence(value):
        inner = _orders_of(value)
        return inner if _any(inner) else None
    return None


def _orders_of(parts: Iterable[Any]) -> list[_Order]:
    # Most parts are leaves, for which a check costs less than a call.
    return [_order_of(part) if isinstance(part, _CONTAINERS) else None for part in parts]


_CONTAINERS: Final = (dict, tuple, list)
_DICTS: Final = (dict, defaultdict, OrderedDict)  # other classes are registered, or leaves


def _are_sorted(keys: list[Any]) -> bool:
    try:
        return keys == sorted(keys)
    except TypeError:  # keys of different types, which JAX refuses to flatten: part of a leaf
        return True


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return type(value) is tuple or type(value) is list or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _any(orders: list[_Order]) -> bool:
    return orders.count(None) != len(orders)


def _arranged(order: _Order, value: PyTree) -> Any:
    if order is None:
        return value
    if isinstance(order, dict):
        if not isinstance(value, dict) or value.keys() != order.keys():
            return value  # a leaf in place of the dict
        parts = {key: _arranged(inner, value[key]) for key, inner in order.items()}
        return _dict_like(value, parts)
    if not _is_sequence(value) or len(value) != len(order):
        return value
    return _remade(value, map(_arranged, order, value))


def _dict_like(value: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, parts)
    return OrderedDict(parts) if isinstance(value, OrderedDict) else parts


def _remade(value: Sequence[Any], elements: Iterable[Any]) -> Any:
    make: Callable[..., Any] = type(value)
    return make(*elements) if hasattr(value, "_fields") else make(elements)
