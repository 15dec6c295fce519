"""Shapes and dtypes of a dataset's elements (`ArraySpec`), with None for dims that vary between elements."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from mirrored._jax.trees import tree_flatten, tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.data.elements import Element, described, first_lost, keeps_values
from mirrored.data.keys import implementation
from mirrored.errors import StructureError
from mirrored.values import html
from mirrored.values.attributes import attribute
from mirrored.values.tensor_shape import TensorShape


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of an array, like `tf.TensorSpec`; None in the shape stands for a varying dim.

    Args:
        shape: The dims; stored as a `TensorShape`, which is a tuple.
        dtype: The dtype; `object` for bytes, and a dtype of records for typed PRNG keys.

    Example:
        >>> ArraySpec((None, 3), np.dtype("float32"))
        ArraySpec(float32[None, 3])

    TensorFlow: `tf.TensorSpec`.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", TensorShape(self.shape))

    def __repr__(self) -> str:
        impl = implementation(self.dtype)
        kind = "bytes" if self.dtype.hasobject else self.dtype if impl is None else f"key<{impl}>"
        return f"ArraySpec({kind}[{', '.join(map(str, self.shape))}])"

    def accepts(self, array: npt.ArrayLike) -> bool:
        """Returns whether an array's shape matches this spec; ignores the dtype."""
        shape = np.shape(array)
        return len(shape) == len(self.shape) and all(
            want is None or want == have for want, have in zip(self.shape, shape, strict=True)
        )

    def batched(self, size: int | None) -> ArraySpec:
        """Returns the `ArraySpec` of a batch of such arrays, with an additional leading dim."""
        return ArraySpec((size, *self.shape), self.dtype)

    def unbatched(self) -> ArraySpec:
        """Returns the `ArraySpec` of a single example of a batch, i.e. without the leading dim."""
        return ArraySpec(self.shape[1:], self.dtype)


class NoElementError(StructureError):
    """Error raised when an empty dataset's shapes must be inferred from its first element.

    It is no `StopIteration`: a spec can be computed while elements are read, where that would end the data.
    """

    def __init__(self, called: str = "Dataset.element_spec") -> None:
        super().__init__(
            called,
            found="the dataset has no element",
            rule="a mapped or generated dataset must have an element, from which its spec is taken",
            remedy="pass output_signature to from_generator, or check why the dataset is empty",
        )


def spec_of(element: Element) -> Any:
    """Returns the shapes and dtypes of an element, as a pytree of `ArraySpec`."""

    def leaf_spec(leaf: Leaf) -> ArraySpec:
        if isinstance(leaf, bytes):
            return ArraySpec((), np.dtype(object))
        dtype = np.dtype(attribute(leaf, "dtype", object))
        return ArraySpec(tuple(np.shape(leaf)), dtype if dtype.isnative else dtype.newbyteorder("="))

    return tree_map(leaf_spec, element)


def map_specs(function: Callable[[ArraySpec], Any], spec: PyTree) -> Any:
    """Applies `function` to every `ArraySpec` of a pytree."""
    return tree_map(function, spec, is_leaf=lambda part: isinstance(part, ArraySpec))


def elements_html(title: str, spec_of: Callable[[], PyTree]) -> str:
    """Returns an HTML table, for notebooks, of the leaves of a dataset's elements.

    Args:
        title: What the dataset is.
        spec_of: Returns the shapes and dtypes of the elements. It may call functions of the user, to see what they
            return; if one raises, the table says so.
    """
    try:
        spec = spec_of()
    except Exception as error:
        return html.table(title, (), (), f"elements not known: {type(error).__name__}: {error}")
    leaves, _ = jax.tree_util.tree_flatten_with_path(spec)
    rows = [(jax.tree_util.keystr(path) or "element", repr(leaf)) for path, leaf in leaves]
    return html.table(title, ("leaf", "array"), rows)


def after_map(parent: PyTree, sample: Element, mapped: Element) -> Any:
    """Infers the shapes and dtypes of elements after `map`, from the function's result for one input element.

    A leading dim of the result varies if it has the same size as a leading dim of the sample that varies in the parent.

    Args:
        parent: The spec of the elements before the map.
        sample: One element before the map.
        mapped: The function's result for this element.
    """
    varying = {
        np.shape(leaf)[0]
        for spec, leaf in zip(_leaves(parent), jax.tree.leaves(sample), strict=True)
        if spec.shape and spec.shape[0] is None
    }

    def loosened(spec: ArraySpec) -> ArraySpec:
        return ArraySpec((None, *spec.shape[1:]), spec.dtype) if spec.shape and spec.shape[0] in varying else spec

    return map_specs(loosened, spec_of(mapped))


def merged(first: PyTree, second: PyTree) -> Any:
    """Combines the specs of two datasets into one that fits both: dims that differ become None."""

    def merge(a: ArraySpec, b: ArraySpec) -> ArraySpec:
        if len(a.shape) != len(b.shape):
            raise StructureError(
                "Dataset.element_spec",
                found=f"the elements of combined datasets are {a!r} and {b!r}",
                rule="a spec has one number of dims, with None for dims that vary",
                remedy="reshape the elements to one number of dims; if you only iterate over the dataset, do not ask "
                "for `element_spec`",
            )
        return ArraySpec(tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)), a.dtype)

    return tree_map(merge, first, second, is_leaf=lambda part: isinstance(part, ArraySpec))


def merged_of(members: Iterable[Any]) -> Any:
    """Returns shapes and dtypes that fit the elements of all given datasets; dims that differ are None.

    Members without an element are ignored if their spec depends on it.

    Raises:
        NoElementError: No member has an element.
    """
    found = []
    for member in members:
        try:
            found.append(member.spec)
        except NoElementError:
            continue
    if not found:
        raise NoElementError
    return functools.reduce(merged, found)


def check(spec: PyTree, element: Element, called: str) -> Any:
    """Casts an element to the dtypes of a spec; raises an error if the structure or shapes differ from the spec.

    A number that an integer dtype of the spec cannot represent raises an error, too.

    The keys of dicts get the order of those of `spec`. If `spec` is one array, a list or tuple of numbers is converted
    to an array.
    """
    if isinstance(spec, ArraySpec) and isinstance(element, (list, tuple)) and not spec.dtype.hasobject:
        element = np.asarray(element)
    wanted, given = _leaves(spec), jax.tree.leaves(element)
    _, structure = tree_flatten(map_specs(lambda _: 0, spec))
    if structure != jax.tree.structure(element):
        raise StructureError(
            called,
            found=f"an element has the structure {jax.tree.structure(element)}",
            rule=f"elements must have the structure of output_signature, {structure}",
            remedy="yield elements of this structure, or change output_signature",
        )
    for want, have in zip(wanted, given, strict=True):
        if not want.accepts(have):
            raise StructureError(
                called,
                found=f"an array has the shape {np.shape(have)}",
                rule=f"output_signature requires {want!r}",
                remedy=f"yield arrays of shape {want.shape}, or put None into output_signature for dims that vary",
            )
    return structure.unflatten([_cast(want, have, called) for want, have in zip(wanted, given, strict=True)])


def _cast(want: ArraySpec, have: Any, called: str) -> Any:
    if want.dtype.hasobject or have.dtype == want.dtype:
        return have
    if implementation(want.dtype) is not None or implementation(have.dtype) is not None:
        raise StructureError(
            called,
            found=f"an array is {described(have)}",
            rule=f"output_signature requires {want!r}: typed PRNG keys are not converted",
            remedy="yield jax.random.wrap_key_data(data) for keys, or put the dtype of the keys into output_signature",
        )
    if want.dtype.kind in "iu" and not keeps_values(have, want.dtype):
        raise StructureError(
            called,
            found=f"an array of {have.dtype} has numbers that {want.dtype} cannot represent, such as "
            f"{first_lost(have, want.dtype)}",
            rule=f"output_signature requires {want!r}: a cast must not change values",
            remedy="yield numbers of this dtype, or put a larger dtype into output_signature",
        )
    return have.astype(want.dtype)


def empty_batch(spec: PyTree) -> Any:
    """Creates a batch with 0 examples of the given shapes and dtypes; None for scalars and unknown example shapes."""
    if any(not leaf.shape or None in leaf.shape[1:] for leaf in _leaves(spec)):
        return None
    return map_specs(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), spec)


def to_json(spec: PyTree) -> Any:
    """Converts a pytree of `ArraySpec` to JSON-serializable data.

    Raises:
        TypeError: The spec has other containers than dicts with string keys, tuples and lists; or records or keys.
    """
    if isinstance(spec, ArraySpec) and spec.dtype.fields is None:
        # NumPy does not read the names of texts and dates, such as "str64".
        name = spec.dtype.str if spec.dtype.kind in "SUMm" else spec.dtype.name
        return {"dtype": name, "shape": list(spec.shape)}
    if type(spec) is dict and all(isinstance(key, str) for key in spec):
        return {"dict": {key: to_json(part) for key, part in spec.items()}}
    if type(spec) in (tuple, list):
        return {type(spec).__name__: [to_json(part) for part in spec]}
    raise TypeError(f"{type(spec)} in a spec")


def from_json(data: dict[str, Any]) -> Any:
    """Converts the result of `to_json` back to a pytree of `ArraySpec`."""
    if "dtype" in data:
        return ArraySpec(tuple(data["shape"]), jnp.dtype(data["dtype"]))
    if "dict" in data:
        return {key: from_json(part) for key, part in data["dict"].items()}
    if "tuple" in data:
        return tuple(from_json(part) for part in data["tuple"])
    return [from_json(part) for part in data["list"]]


def _leaves(spec: PyTree) -> list[ArraySpec]:
    return jax.tree.leaves(spec, is_leaf=lambda part: isinstance(part, ArraySpec))
