"""Flattens, maps and rebuilds pytrees whose dicts keep the order of their keys.

JAX flattens a dict in the order of its sorted keys and rebuilds it in that order, too. A function that returns
``{"loss": ..., "accuracy": ...}`` would therefore return the accuracy first, and ``loss, accuracy = result.values()``
would exchange the two without an error. TensorFlow's `tf.nest` keeps the order of insertion, and so does this module.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeGuard

import jax
import numpy as np

from mirrored._typing import PyTree
from mirrored.errors import StructureError


class Structure:
    """A `jax.tree_util.PyTreeDef` with the original key order of the pytree's dicts.

    Structures are equal if their treedefs are: the order of keys does not distinguish them. Dicts inside nodes of
    registered classes (``TrainState.params``) have their keys sorted, as in JAX.

    Args:
        treedef: The treedef of `value`.
        value: The pytree whose dicts define the order. No reference to it is kept.
    """

    __slots__ = ("_like", "treedef")

    def __init__(self, treedef: jax.tree_util.PyTreeDef, value: PyTree) -> None:
        self.treedef = treedef
        # None if all keys are sorted, as in most trees: JAX's own order is right then.
        self._like = (
            in_order_of(value, self._by_jax([None] * treedef.num_leaves)) if _has_order(value, _are_sorted) else None
        )

    @property
    def num_leaves(self) -> int:
        """The number of leaves of the pytree."""
        return int(self.treedef.num_leaves)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Rebuilds the pytree from leaves in JAX's flattening order; dicts keep their original key order."""
        value = self._by_jax(leaves)
        return value if self._like is None else in_order_of(self._like, value)

    def _by_jax(self, leaves: Sequence[Any]) -> Any:
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

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
    """Flattens a pytree like `jax.tree.flatten`; the returned structure restores each dict's original key order."""
    try:
        leaves, treedef = jax.tree_util.tree_flatten(value, is_leaf=is_leaf)
    except ValueError as error:
        refuse_mixed_keys(value, error)
        raise
    return leaves, Structure(treedef, value)


def flatten_with_path(value: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Like `jax.tree_util.tree_flatten_with_path`; its error for keys that cannot be sorted has a rule and a remedy."""
    try:
        return jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)  # type: ignore[no-any-return,unused-ignore]
    except ValueError as error:
        refuse_mixed_keys(value, error)
        raise


def refuse_mixed_keys(value: PyTree, error: ValueError) -> None:
    """Raises an error with rule and remedy if JAX could not sort the keys of a dict; `error` is what JAX raised.

    Raises:
        StructureError: A dict has keys that cannot be compared, such as strings and numbers.
    """
    if not str(error).startswith(_NOT_SORTED):
        return
    keys = ", ".join(map(repr, _mixed_keys(value) or ("...",)))
    raise StructureError(
        "a structure of values",
        found=f"a dict has the keys {keys}, which cannot be sorted",
        rule="the keys of a dict in arguments, results and values of replicas must be comparable with each other, such "
        "as strings only or integers only: JAX lists the values of a dict in the order of its sorted keys",
        remedy="use keys of one type, such as str(key), or pass a list of pairs of key and value",
    ) from error


def _mixed_keys(value: PyTree) -> list[Any] | None:
    """Returns the keys of the first dict in a pytree whose keys cannot be sorted, or None."""
    if isinstance(value, dict):
        try:
            sorted(value)
        except TypeError:
            return list(value)
        value = tuple(value.values())
    elif not _is_sequence(value):
        return None
    return next((keys for keys in map(_mixed_keys, value) if keys is not None), None)


def tree_map(
    function: Callable[..., Any], value: PyTree, *rest: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Maps a function over pytree leaves like `jax.tree.map`; the result's dicts have the key order of `value`."""
    if type(value) is np.ndarray:  # one leaf, as in many elements of datasets: a flattening costs more than they do
        return function(value, *rest)
    try:
        return in_order_of(value, jax.tree.map(function, value, *rest, is_leaf=is_leaf))
    except ValueError as error:
        refuse_mixed_keys(value, error)
        raise


def with_new_containers(value: PyTree) -> Any:
    """Returns a copy of a pytree with new containers, such as dicts and lists, but the same leaf objects."""
    kind = type(value)
    if kind is dict:  # these three without JAX, whose flattening costs ten times as much, for each element of a dataset
        return {key: with_new_containers(part) for key, part in value.items()}
    if kind is tuple or kind is list:
        return kind(map(with_new_containers, value))
    return value if isinstance(value, np.ndarray | np.generic | bytes) else tree_map(lambda leaf: leaf, value)


def is_same_place(path: Sequence[Any], other: Sequence[Any]) -> bool:
    """Returns whether two pytree paths lead to the same leaf; a field may be given by name or by position.

    A field may have a position in place of its name (a tuple for a NamedTuple), because the order of fields is fixed.
    A key of a dict may not: JAX flattens dicts in the order of their sorted keys, and lists in the order of elements.
    The longer path may go on inside the leaf of the other one, as in a Flax variable around an array.
    """
    return all(map(_is_same_key, path, other))


def _is_same_key(key: Any, other: Any) -> bool:
    kinds = {type(key), type(other)}
    # A class that is registered without keys has positions, whatever its children are.
    is_unnamed = len(kinds) > 1 and jax.tree_util.FlattenedIndexKey in kinds
    is_field = kinds == {jax.tree_util.GetAttrKey, jax.tree_util.SequenceKey}
    return is_unnamed or is_field or _label(key) == _label(other)


def _label(key: Any) -> str:
    """Returns, as text, the dict key, field name or index in one entry of a pytree path."""
    return next((str(getattr(key, kind)) for kind in ("key", "name", "idx") if hasattr(key, kind)), str(key))


def in_order_of(like: PyTree, value: PyTree) -> Any:
    """Returns `value` with the keys of each dict ordered as in the same dict of `like`, a pytree of equal structure.

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


def positions_in_order(value: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[int, ...]:
    """Returns the indices that reorder ``jax.tree.leaves(value)`` into the original key order of the dicts.

    For ``{"b": x, "a": y}``, whose leaves JAX lists as ``[y, x]``, the result is ``(1, 0)``. Dicts inside
    nodes of registered classes have their keys sorted, as in JAX.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)[0]]
    positions = range(len(paths))
    orders: dict[int, dict[Any, int]] = {}
    return tuple(
        sorted(positions, key=lambda at: _rank(value, paths[at], orders))
        if _has_order(value, _are_sorted)
        else positions
    )


def _rank(value: Any, path: Sequence[Any], orders: dict[int, dict[Any, int]]) -> list[int]:
    """Returns the sort key of a pytree leaf: its position in each dict and sequence along the path."""
    rank = []
    for key in path:
        if type(value) in _DICTS:
            order = orders.get(id(value)) or orders.setdefault(id(value), {one: at for at, one in enumerate(value)})
            rank.append(order[key.key])
            value = value[key.key]
        elif _is_sequence(value):
            at = value._fields.index(key.name) if hasattr(value, "_fields") else key.idx
            rank.append(at)
            value = value[at]
        else:  # all leaves in here have the same rank, and the sort is stable
            break
    return rank


def keys_in_order(value: PyTree, key_of: Callable[[Any], Hashable]) -> tuple[Any, ...]:
    """Returns the keys of a pytree's dicts, in their order, as a hashable value.

    The result is ``()`` if the keys of every dict are sorted and are strings or integers of Python, or tuples of these.

    Two pytrees of equal treedefs have equal results if and only if code that iterates over their dicts meets the same
    keys in the same order. Treedefs compare keys by ``==``, which finds 1, 1.0 and True equal. Dicts inside nodes of
    registered classes have their keys sorted, as in JAX, and compared by ``==``.

    Args:
        value: The pytree.
        key_of: Returns what identifies another key.
    """
    if not _has_order(value, _are_usual):
        return ()
    if isinstance(value, dict):
        return tuple(
            (key if _is_usual(key) else key_of(key), keys_in_order(part, key_of)) for key, part in value.items()
        )
    return tuple(keys_in_order(part, key_of) for part in value)


def transformed(transform: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies a transform such as `jax.vmap` to a function; dicts in arguments and results keep their key order.

    The transform gets a function of the list of all leaves, which is new in each call.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, given = tree_flatten((args, kwargs))
        made: list[Structure] = []

        def of_leaves(leaves: list[Any]) -> list[Any]:
            own_args, own_kwargs = given.unflatten(leaves)
            results, structure = tree_flatten(function(*own_args, **own_kwargs))
            made[:] = [structure]
            return results

        results = transform(of_leaves)(leaves)
        return made[0].unflatten(results)

    return call


_NOT_SORTED: Final = "Comparator raised exception"
"""How JAX's error about such keys begins. Supports JAX 0.10 to 0.12."""
_CONTAINERS: Final = (dict, tuple, list)
_DICTS: Final = (dict, defaultdict, OrderedDict)  # other classes are registered, or leaves
_USUAL_KEYS: Final = frozenset({str, int})


def _has_order(value: PyTree, are_in_order: Callable[[list[Any]], bool]) -> bool:
    """Returns whether a pytree has a dict whose list of keys does not satisfy a condition, such as `_are_sorted`."""
    if isinstance(value, dict):
        return type(value) in _DICTS and (not are_in_order(list(value)) or _any_has_order(value.values(), are_in_order))
    return _is_sequence(value) and _any_has_order(value, are_in_order)


def _any_has_order(parts: Iterable[Any], are_in_order: Callable[[list[Any]], bool]) -> bool:
    # Most parts are leaves, for which a check costs less than a call.
    return any([_has_order(part, are_in_order) for part in parts if isinstance(part, _CONTAINERS)])


def _are_usual(keys: list[Any]) -> bool:
    """Returns whether the keys of a dict are sorted, and each differs by ``==`` from the keys of other types."""
    return (_USUAL_KEYS.issuperset(map(type, keys)) or all(map(_is_usual, keys))) and _are_sorted(keys)


def _is_usual(key: object) -> bool:
    """Returns whether a key is a string or integer of Python, or a tuple of these: no key of another type equals it."""
    return type(key) in _USUAL_KEYS or (type(key) is tuple and _USUAL_KEYS.issuperset(map(type, key)))


def _are_sorted(keys: list[Any]) -> bool:
    try:
        return keys == sorted(keys)
    except TypeError:  # keys of different types, which JAX refuses to flatten: part of a leaf
        return True


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return type(value) is tuple or type(value) is list or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _dict_like(value: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, parts)
    return OrderedDict(parts) if isinstance(value, OrderedDict) else parts


def _remade(value: Sequence[Any], elements: Iterable[Any]) -> Any:
    make: Callable[..., Any] = type(value)
    return make(*elements) if hasattr(value, "_fields") else make(elements)
