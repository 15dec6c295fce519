"""Functions for dataset elements, i.e. pytrees of NumPy arrays or bytes: convert, stack, and pad elements.

Buffers that a pipeline allocates are 64-byte aligned, so that `jax.device_put` to a CPU device aliases them instead of
copying (measured: 20,500 instead of 3,500 batches/s of ``f32[512, 784]``). Arrays from user code are copied where they
enter the pipeline (`own_element`), because a generator or a function may write to them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import jax
import numpy as np

from mirrored._jax.arrays import aligned_empty, expose, frozen, is_key, owned, unmasked
from mirrored._jax.sequences import has_wide_items
from mirrored._jax.trees import Structure, tree_flatten, tree_map
from mirrored._typing import HostArray, PyTree
from mirrored.data.keys import as_records, contains_keys, implementation, represents_keys, with_keys
from mirrored.data.padded_shapes import check_rank, padded_shapes_of, per_leaf
from mirrored.errors import ArgumentError, StructureError
from mirrored.values.attributes import attribute

Element: TypeAlias = Any

_OBJECT: Final = np.dtype(object)


def snapshot(array: np.ndarray) -> np.ndarray:
    """Copies an array into aligned, read-only memory, so that a dataset can be created from the copy.

    Memory-mapped files are used in place, since they may be larger than memory. The result is read-only then, too: user
    code that writes to an element would change the file.
    """
    kept: np.ndarray = array.view() if _is_mapped(array) else frozen(array)
    kept.flags.writeable = False
    return kept


def _is_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def native(array: Any) -> Any:
    """Copies an array of foreign byte order into native order; returns any other value unchanged.

    For example, a memory-mapped FITS file contains arrays of foreign (big-endian) byte order.
    """
    is_foreign = isinstance(array, np.ndarray | np.generic) and not array.dtype.isnative
    return owned(array) if is_foreign else array


def as_element(value: PyTree, called: str, narrow: bool = True) -> Element:
    """Converts a value from user code to a dataset element (a pytree of NumPy arrays), without copying arrays.

    Arrays, numbers and lists become NumPy arrays. Python floats become float32 and ints int32, as in TensorFlow and
    JAX, but lists that contain arrays of 64 bits keep them. Strings become UTF-8 bytes.

    Args:
        value: A pytree of arrays, numbers, lists and strings.
        called: The function that the user called, for messages.
        narrow: If False, Python numbers have 64 bits: the caller casts them, and 32 bits would change values before.

    Raises:
        StructureError: A leaf is not an array.
    """
    if isinstance(value, np.ndarray | np.generic | bytes):
        return _as_bytes(value)
    if value is None:
        raise StructureError(
            called,
            found="the element is None",
            rule="an element must be a pytree of arrays",
            remedy="return the arrays; use .filter(predicate) to drop elements",
        )
    return tree_map(lambda leaf: _leaf(leaf, called, narrow), value, is_leaf=lambda part: isinstance(part, list))


def own_element(value: PyTree, called: str, narrow: bool = True) -> Element:
    """Converts a value like `as_element`, and copies arrays that user code may overwrite later (reused buffers)."""
    element = as_element(value, called, narrow)
    if isinstance(element, np.ndarray):
        return owned(element)
    return element if isinstance(element, np.generic | bytes) else tree_map(owned, element)


def handed_out(element: Element) -> Element:
    """Records that user code holds an element's arrays and may write to them; returns it with typed PRNG keys."""
    leaves = [element] if type(element) is np.ndarray else jax.tree.leaves(element)
    for leaf in leaves:
        expose(leaf)
    return with_keys(element) if any(map(represents_keys, leaves)) else element


def _leaf(leaf: object, called: str, narrow: bool) -> Any:
    if isinstance(leaf, np.ndarray | np.generic | bytes):
        return _as_bytes(leaf)
    if attribute(leaf, "is_dataset", False):
        return leaf
    if is_key(leaf):
        return as_records(leaf)  # type: ignore[arg-type]
    if isinstance(leaf, str):
        return leaf.encode()
    array = _array(leaf, called)
    may_narrow = narrow and isinstance(leaf, bool | int | float | complex | list)
    return narrowed(array) if may_narrow and not has_wide_items(leaf, array) else array


def _as_bytes(value: np.ndarray | np.generic | bytes) -> Any:
    """Returns an array with each `str` object in it encoded, as in a column of pandas; other values are unchanged."""
    value = unmasked(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in ("O", "T"):
        items = value.ravel().tolist()
        if any(isinstance(item, str) for item in items):
            encoded = np.empty(len(items), object)
            for place, item in enumerate(items):  # one by one, because an item may be a sequence
                encoded[place] = item.encode() if isinstance(item, str) else item
            return encoded.reshape(value.shape)
    return value


def _array(leaf: object, called: str) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError as error:
        raise StructureError(
            called,
            found=f"a list is ragged: {error}",
            rule="a list in an element becomes one array, so its rows must have one length",
            remedy="use a tuple for a structure, or pad the rows to one length",
        ) from error
    except TypeError as error:
        if not contains_keys(leaf):
            raise
        raise StructureError(
            called,
            found="a list contains typed PRNG keys",
            rule="a list in an element becomes one NumPy array, and NumPy has no keys",
            remedy="use one array of keys, jax.numpy.stack(keys), or a tuple for a structure",
        ) from error
    except LookupError:  # raised by the leaf, of which NumPy reads attributes (see `values.attributes`)
        array = np.empty(1, object)
    if array.dtype.kind in "US" and isinstance(leaf, list):
        array = np.array(leaf, object)  # items of an array of dtype S or U lose NUL characters at their ends
    if array.dtype.kind in "UST" or (array.dtype.kind == "O" and _are_texts(array)):
        return np.array([_encoded(text) for text in array.ravel()], object).reshape(array.shape)
    if array.dtype.kind == "O" and array.size:
        raise StructureError(
            called,
            found=f"a leaf is of type {type(leaf).__name__}: {leaf!r}",
            rule="the leaves of an element must be arrays, numbers, strings or bytes",
            remedy="convert the leaf with numpy.asarray in the function that returns it",
        )
    return array


def _are_texts(array: np.ndarray) -> bool:
    """Returns whether all items of an array are strings or bytes, as in a column of a table."""
    return bool(array.size) and all(isinstance(item, str | bytes) for item in array.ravel())


def _encoded(text: str | bytes) -> bytes:
    return bytes(text) if isinstance(text, bytes) else str(text).encode()


def narrowed(array: np.ndarray) -> np.ndarray:
    """Casts float64 to float32, complex128 to complex64, and int64 to int32 (if all integers fit in int32).

    So Python floats and integers get the dtypes that TensorFlow gives them. Other dtypes are kept.
    """
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.complex128:
        return array.astype(np.complex64)
    limits = np.iinfo(np.int32)
    if array.dtype == np.int64 and (array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max)):
        return array.astype(np.int32)
    return array


def stack(elements: Sequence[Element], called: str = "Dataset.batch") -> Element:
    """Stacks elements of the same structure into one batch: every array gets a new leading dim.

    Raises:
        StructureError: Structures, shapes or dtypes differ; the message names the element and the leaf. Or the elements
            contain datasets.
    """
    columns, treedef = _columns(elements, called)
    names = _names(elements[0])
    return treedef.unflatten([_stacked(column, name, called) for column, name in zip(columns, names, strict=True)])


def _columns(elements: Sequence[Element], called: str, one: str = "element") -> tuple[list[list[Any]], Structure]:
    """Transposes elements into one list of values per leaf; raises if structures differ or a leaf is a dataset."""
    columns, treedef = columns_of(elements, called, one, "batch")
    if any(attribute(column[0], "is_dataset", False) for column in columns):
        raise StructureError(
            called,
            found="the elements are datasets, such as the windows of Dataset.window, or contain some",
            rule="a batch is made of arrays",
            remedy="write .flat_map(lambda window: window.batch(size)) before .batch(...); of windows with "
            "several columns: .flat_map(lambda a, b: Dataset.zip((a, b)).batch(size))",
        )
    return columns, treedef


def columns_of(elements: Sequence[Element], called: str, one: str, whole: str) -> tuple[list[list[Any]], Structure]:
    """Transposes elements into one list of values per leaf; also returns the structure that all elements share.

    Raises:
        StructureError: The structures of the elements differ.
    """
    other: Any
    first, treedef = tree_flatten(elements[0])
    columns: list[list[Any]] = [[leaf] for leaf in first]
    for index, element in enumerate(elements[1:], 1):
        leaves, other = jax.tree_util.tree_flatten(element)
        if other != treedef.treedef:
            raise StructureError(
                called,
                found=f"{one} 0 of the {whole} is {treedef}, {one} {index} is {other}",
                rule="all elements of a dataset must have the same structure",
                remedy="return the same keys and tuple lengths for every element",
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return columns, treedef


def _names(element: Element) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(element)]


def _stacked(column: list[Any], name: str, called: str) -> np.ndarray:
    first = column[0]
    if isinstance(first, bytes) or (isinstance(first, str) and any(isinstance(leaf, bytes) for leaf in column)):
        # A string of an array of dtype U stays one, unless others in the batch are bytes.
        return np.array([leaf.encode() if isinstance(leaf, str) else leaf for leaf in column], object)
    shape, dtype = np.shape(first), _dtype_with_room(column)
    for index, leaf in enumerate(column):
        if np.shape(leaf) != shape or not _has_dtype(leaf, dtype):
            raise StructureError(
                called,
                found=f"the leaf element{name} is {described(first)} in element 0 of the batch "
                f"and {described(leaf)} in element {index}",
                rule="the elements of a batch must have equal shapes and dtypes",
                remedy="pad them with .padded_batch(...), or map them to one shape and dtype before .batch(...)",
            )
    out = aligned_empty((len(column), *shape), dtype)
    return np.stack(column, out=out)


def _dtype_with_room(column: list[Any]) -> np.dtype[Any]:
    """Returns the dtype for the values of one leaf: the longest dtype of strings, otherwise the first value's dtype."""
    dtype: np.dtype[Any] = column[0].dtype
    if dtype.kind not in "SU":
        return dtype
    return np.result_type(*[leaf.dtype for leaf in column if getattr(leaf, "dtype", _OBJECT).kind == dtype.kind])


def _has_dtype(leaf: Any, dtype: np.dtype[Any]) -> bool:
    """Returns whether a value has the given dtype; string dtypes of different lengths count as equal."""
    own = attribute(leaf, "dtype")
    return own == dtype or (own is not None and own.kind == dtype.kind and dtype.kind in "SU")


def joined(parts: Sequence[Element], called: str) -> Element:
    """Concatenates batches of the same structure along their first dim into one batch.

    Raises:
        StructureError: Structures, dtypes or shapes (apart from the first dim) differ.
    """
    if len(parts) == 1:
        return parts[0]
    columns, treedef = _columns(parts, called, "part")
    names = _names(parts[0])
    return treedef.unflatten([_concatenated(*one, called) for one in zip(columns, names, strict=True)])


def _concatenated(column: list[np.ndarray], name: str, called: str) -> np.ndarray:
    first, dtype = column[0], _dtype_with_room(column)
    for index, part in enumerate(column):
        if part.shape[1:] != first.shape[1:] or not _has_dtype(part, dtype):
            raise StructureError(
                called,
                found=f"the leaf element{name} is {described(first)} in part 0 of the batch "
                f"and {described(part)} in part {index}",
                rule="the parts of a batch must have equal dtypes, and equal shapes apart from the first dim",
                remedy="map the batches to one shape and dtype before",
            )
    # NumPy would choose a common dtype by itself, float64 for int64 and uint64, which changes large integers.
    out = aligned_empty((sum(part.shape[0] for part in column), *first.shape[1:]), dtype)
    return np.concatenate(column, out=out)


def described(leaf: HostArray | np.generic | bytes) -> str:
    """Formats the dtype and shape of an array, for example ``float32[3, 2]``."""
    if isinstance(leaf, bytes):
        return "bytes"
    impl = implementation(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else None
    kind = attribute(leaf, "dtype", type(leaf).__name__) if impl is None else f"key<{impl}>"
    return f"{kind}[{', '.join(map(str, np.shape(leaf)))}]"


def take(batch: np.ndarray, positions: range | np.ndarray) -> np.ndarray:
    """Selects entries of an array along the first dim: a view for a range of indices, otherwise an aligned copy."""
    if isinstance(positions, range):
        stop: int | None = positions.stop
        if positions.step < 0 and positions.stop < 0:
            stop = None
        view: np.ndarray = native(batch[positions.start : stop : positions.step])
        return view
    out = aligned_empty((len(positions), *batch.shape[1:]), batch.dtype)
    # mode="clip" lets NumPy write directly into `out`. The positions are in range by construction.
    np.take(batch, positions, axis=0, out=out, mode="clip")
    return out


def pad_and_stack(elements: Sequence[Element], shapes: PyTree, values: PyTree, called: str) -> Element:
    """Pads elements to one shape, by default to the largest size of each dim, and stacks the results into a batch.

    Args:
        elements: The elements of the batch.
        shapes: A pytree of padded shapes; None or -1 in a shape stands for the largest dim in the batch. None: this
            applies to all dims.
        values: A pytree of padding values, one value for all leaves, or None for zeros and empty strings.
        called: The function that the user called, for messages.

    Raises:
        StructureError: Structures, ranks or dtypes differ, an element is larger than the padded shape, or `shapes` or
            `values` has another structure than the elements.
        ArgumentError: The dtype of a leaf cannot represent its padding value.
    """
    columns, treedef = _columns(elements, called)
    padded_shapes = padded_shapes_of(shapes, treedef, called)
    padding = per_leaf(values, treedef, called, "padding_values", lambda part: part is None)
    stacked = [
        _pad_column(_alike(column, name, called), shape, value, called)
        for column, name, shape, value in zip(columns, _names(elements[0]), padded_shapes, padding, strict=True)
    ]
    return treedef.unflatten(stacked)


def _alike(column: list[Any], name: str, called: str) -> list[np.ndarray]:
    """Converts the values of one leaf in all elements to arrays; raises an error if their ranks or dtypes differ."""
    # An array of bytes would have the length of the first, and cut off the others.
    arrays = [np.asarray(leaf, object) if isinstance(leaf, bytes) else np.asarray(leaf) for leaf in column]
    first, dtype = arrays[0], _dtype_with_room(arrays)
    for index, array in enumerate(arrays):
        if not _has_dtype(array, dtype) or array.ndim != first.ndim:
            raise StructureError(
                called,
                found=f"the leaf element{name} is {described(column[0])} in element 0 of the batch "
                f"and {described(column[index])} in element {index}",
                rule="the elements of a padded batch must have equal dtypes and numbers of dims",
                remedy="map them to one dtype and number of dims before they are padded",
            )
    return arrays


def _pad_column(column: list[np.ndarray], shape: Sequence[int | None] | None, value: object, called: str) -> np.ndarray:
    if shape is None:
        shape = (None,) * column[0].ndim
    check_rank(shape, column[0].ndim, called)
    longest = [max(leaf.shape[axis] for leaf in column) for axis in range(column[0].ndim)]
    full = tuple(found if want in (None, -1) else want for want, found in zip(shape, longest, strict=True))
    for index, leaf in enumerate(column):
        if any(have > room for have, room in zip(leaf.shape, full, strict=True)):
            raise StructureError(
                called,
                found=f"element {index} of the batch is {described(leaf)}, the padded shape is {list(full)}",
                rule="no dim of an element can be larger than in the padded shape",
                remedy="pass None for that dim in padded_shapes, or a larger number",
            )
    dtype = _dtype_with_room(column)
    padding = _padding_of(dtype, value, called)
    if dtype.kind in "SU":
        dtype = np.result_type(dtype, np.asarray(padding))
    out = aligned_empty((len(column), *full), dtype)
    out[...] = padding
    for row, leaf in enumerate(column):
        corner: tuple[Any, ...] = (row, *(slice(0, n) for n in leaf.shape))
        out[corner] = leaf[()]  # an array of dim 0 would itself be stored among objects
    return out


def _padding_of(dtype: np.dtype[Any], value: object, called: str) -> Any:
    """Returns the padding for `dtype`, by default 0 or the empty string; raises an error if `value` does not fit."""
    has_texts = dtype.hasobject or dtype.kind in "SU"
    if value is None and implementation(dtype) is not None:
        return np.zeros((), dtype)
    if value is None:
        value = "" if has_texts else 0
    if has_texts != isinstance(value, str | bytes) or not (has_texts or keeps_values(np.asarray(value), dtype)):
        raise ArgumentError(
            called,
            found=f"the padding value {value!r}, and a leaf of dtype {'bytes' if dtype.hasobject else dtype}",
            rule="a padding value must be a value of the dtype of its leaf",
            remedy="pass one value per leaf in padding_values (None: zeros and empty strings), or map the leaf to the "
            "dtype of the value before it is padded",
        )
    if isinstance(value, str | bytes):
        return _encoded(value).decode() if dtype.kind == "U" else _encoded(value)
    return value


def keeps_values(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Returns whether an array can be cast to a dtype without changing its numbers, except for rounding of floats.

    A cast of integers to a smaller dtype wraps around, one of real numbers to integers truncates, and neither raises
    an error.
    """
    if dtype.kind not in "biufV" or array.dtype.kind not in "biufcV" or np.can_cast(array.dtype, dtype, "safe"):
        return bool(np.can_cast(array.dtype, dtype, "same_kind"))
    if array.dtype.kind == "c":
        return False
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if dtype.kind in "biu":
            return bool(np.all(cast == array))
        return bool(np.all(np.isfinite(cast) | ~np.isfinite(array)))


def with_widths_of(before: Element, element: Element) -> Element:
    """Widens each array of `element` to the dtype of its counterpart in `before`, such as int32 to int64.

    Arrays are not cast to a narrower dtype or to one of another kind. So Python numbers, which become 32-bit arrays, do
    not narrow a 64-bit state. Elements of another structure are returned unchanged.
    """
    if isinstance(before, np.ndarray | np.generic):
        return _with_width_of(before, element)
    old: Any = jax.tree.structure(before)
    return tree_map(_with_width_of, before, element) if old == jax.tree.structure(element) else element


def _with_width_of(before: Any, leaf: Any) -> Any:
    old, new = attribute(before, "dtype"), attribute(leaf, "dtype")
    if old is None or new is None or old == new or old.kind not in "iufc" or old.kind != new.kind:
        return leaf
    return leaf.astype(old) if old.itemsize > new.itemsize else leaf


def first_lost(array: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Returns the first number in an array that a cast to `dtype` would change, for error messages; otherwise None."""
    return next((one for one in np.ravel(array) if not keeps_values(np.asarray(one), dtype)), None)
