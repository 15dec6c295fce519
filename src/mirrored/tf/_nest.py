"""`tf.nest`: functions for nested lists, tuples and dicts, by TensorFlow's rules.

Lists, tuples, named tuples, deques, mappings (in sorted key order) and their views are structures. Everything else is a
leaf, None and `tf.TensorShape` included.
In JAX's pytrees, None is instead an empty structure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from typing import Any, Final

from mirrored._typing import PyTree
from mirrored.tf._indexed_slices import IndexedSlices
from mirrored.tf._shapes import TensorShape
from mirrored.tf._table import op
from mirrored.values.attributes import has_attribute
from mirrored.values.distributed_values import PerReplica

_NESTED: Final = (list, tuple, Mapping, deque, MappingView)


def is_nested(structure: object) -> bool:
    """Returns whether a value is a nested structure: a list, tuple, deque, mapping or view of a mapping."""
    return isinstance(structure, _NESTED) and not isinstance(structure, (IndexedSlices, TensorShape))


def _has_parts(structure: PyTree, composites: bool) -> bool:
    return is_nested(structure) or (composites and isinstance(structure, (PerReplica, IndexedSlices)))


def _keys(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:
        raise TypeError(f"nest only supports dicts with sortable keys. Unsupported keys: {list(mapping)}") from None


def children(structure: PyTree) -> list[tuple[Any, Any]]:
    """Returns the pairs (key, item) of one level of a nested structure, in order."""
    if isinstance(structure, Mapping):
        return [(key, structure[key]) for key in _keys(structure)]
    return list(enumerate(structure.values if isinstance(structure, PerReplica) else structure))


def flatten(structure: PyTree, expand_composites: bool = False) -> list[Any]:
    """Returns the leaves of a nested structure as a list; a value that is not a structure is a leaf."""
    return [leaf for _, leaf in with_paths(structure, composites=expand_composites)]


def with_paths(
    structure: PyTree, path: tuple[Any, ...] = (), *, composites: bool = False
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields each leaf of a nested structure with its path, a tuple of keys."""
    if not _has_parts(structure, composites):
        yield path, structure
        return
    for key, part in children(structure):
        yield from with_paths(part, (*path, key), composites=composites)


def pack_sequence_as(structure: PyTree, flat_sequence: Sequence[Any], expand_composites: bool = False) -> Any:
    """Packs a flat list of leaves into the nesting of a given structure.

    Raises:
        ValueError: The number of leaves differs.
    """
    leaves = list(flat_sequence)
    count = len(flatten(structure, expand_composites))
    if count != len(leaves):
        raise ValueError(
            f"Could not pack sequence. Structure had {count} atoms, but flat_sequence had {len(leaves)} items. "
            f"Structure: {structure}, flat_sequence: {flat_sequence}."
        )
    iterator = iter(leaves)
    return _refilled(structure, iterator, expand_composites)


def _refilled(structure: PyTree, leaves: Iterator[Any], composites: bool) -> Any:
    if not _has_parts(structure, composites):
        return next(leaves)
    return remade(structure, [_refilled(part, leaves, composites) for _, part in children(structure)])


def remade(structure: PyTree, parts: Sequence[Any]) -> Any:
    """Creates a structure with the type and keys of `structure` and new items; returns a list for a mapping view."""
    if isinstance(structure, Mapping):
        by_key = dict(zip(_keys(structure), parts, strict=True))
        in_order = {key: by_key[key] for key in structure}
        if type(structure) is dict:
            return in_order
        if isinstance(structure, defaultdict):
            return type(structure)(structure.default_factory, in_order)
        return type(structure)(in_order)  # type: ignore[call-arg]
    if isinstance(structure, PerReplica):
        return PerReplica.of_components(parts, structure.device_assignment)
    if has_attribute(structure, "_fields"):
        return type(structure)(*parts)
    if isinstance(structure, MappingView):
        return list(parts)
    return type(structure)(parts)


def map_structure(func: Callable[..., Any], *structure: PyTree, **kwargs: Any) -> Any:
    """Applies a function to the corresponding leaves of nested structures; returns a structure of the results.

    Raises:
        ValueError, TypeError: The structures differ.
    """
    check_types = kwargs.pop("check_types", True)
    composites = bool(kwargs.pop("expand_composites", False))
    if kwargs:
        raise ValueError(
            f"Only valid keyword arguments are `check_types` and `expand_composites`, not: {sorted(kwargs)}"
        )
    if not callable(func):
        raise TypeError(f"func must be callable, got: {func}")
    if not structure:
        raise ValueError("Must provide at least one structure")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types=check_types)
    flat = zip(*(flatten(one, composites) for one in structure), strict=True)
    return pack_sequence_as(structure[0], [func(*leaves) for leaves in flat], composites)


def assert_same_structure(
    nest1: PyTree, nest2: PyTree, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raises an error unless two nested structures have the same nesting, keys and types.

    Raises:
        ValueError: The number or the names of parts differ.
        TypeError: Unless `check_types` is False: the types of sequences or the keys differ.
    """
    del expand_composites
    both = f"\n\nFirst structure: {nest1}\n\nSecond structure: {nest2}"
    if is_nested(nest1) != is_nested(nest2):
        raise ValueError(f"The two structures don't have the same nested structure.{both}")
    if not is_nested(nest1):
        return
    if isinstance(nest1, Mapping) and isinstance(nest2, Mapping):
        if set(nest1) != set(nest2):
            raise ValueError(f"The two dictionaries don't have the same set of keys.{both}")
    elif check_types and not _same_sequence(nest1, nest2):
        raise TypeError(f"The two structures don't have the same sequence type.{both}")
    first, second = children(nest1), children(nest2)
    if len(first) != len(second):
        raise ValueError(f"The two structures don't have the same number of elements.{both}")
    for (_, one), (_, other) in zip(first, second, strict=True):
        assert_same_structure(one, other, check_types=check_types)


def _same_sequence(one: PyTree, other: PyTree) -> bool:
    if has_attribute(one, "_fields") and has_attribute(other, "_fields"):
        return type(one).__name__ == type(other).__name__ and one._fields == other._fields
    return type(one) is type(other)


op("nest.is_nested", named=False)(is_nested)
op("nest.flatten", named=False)(flatten)
op("nest.pack_sequence_as", named=False)(pack_sequence_as)
op("nest.map_structure")(map_structure)
op("nest.assert_same_structure", named=False)(assert_same_structure)
