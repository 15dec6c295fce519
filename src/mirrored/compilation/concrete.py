"""`ConcreteFunction`: a compiled function for one signature, and its export as a pure function."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import caches
from mirrored._jax.arrays import as_array
from mirrored._jax.inlining import stage
from mirrored._jax.traces import CaptureTracer, Tracer, canonical_dtype, current_trace
from mirrored._typing import Leaf
from mirrored.compilation.input_signature import dtype_of, from_numpy, from_python
from mirrored.compilation.program import Program
from mirrored.compilation.static_keys import unchanging
from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.runtime.ambient import within
from mirrored.runtime.staged_values import take_values
from mirrored.runtime.variable_store import FunctionStore
from mirrored.values import structures
from mirrored.values.attributes import has_attribute
from mirrored.values.distributed_values import DistributedValues
from mirrored.variables import Variable

# `ConcreteFunction`: a compiled function with fixed static arguments, from `Function.get_concrete_function`.


def is_spec(leaf: object) -> bool:
    """Returns whether a pytree leaf, such as `jax.ShapeDtypeStruct`, has a shape and dtype but no value."""
    return (
        not isinstance(leaf, (jax.Array, np.ndarray, Variable))
        and has_attribute(leaf, "shape")
        and has_attribute(leaf, "dtype")
    )


class ConcreteFunction:
    """A compiled function for arrays of fixed shapes and dtypes, with all other arguments fixed.

    Args:
        call: The compiled function.
        python_function: The Python function, which defines the parameter names.
        args: Arrays or descriptions of arrays (objects with `shape` and `dtype`), and static arguments.
        kwargs: The same, by name.
        name: The function's name for messages.

    Attributes:
        function: The compiled function.
        program: The traced program; None if a shape is not fully known.
    """

    program: Program | None = None

    def __init__(
        self,
        call: Callable[..., Any],
        python_function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
    ) -> None:
        self._name = name
        self.function: Any = call
        self._names = self._array_indices(python_function, args, kwargs)
        leaves, self._treedef = structures.flatten((args, kwargs))
        self._leaves = [leaf if is_array(leaf) else unchanging(leaf) for leaf in leaves]
        self._places = [place for place, leaf in enumerate(self._leaves) if is_array(leaf)]

    def _array_indices(
        self, python_function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> dict[str, int]:
        """Maps the names of array parameters to their indices among the flattened argument arrays."""
        single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [one.name for one in parameters_of(python_function) if one.kind in single][: len(args)]
        named = [*zip([*names, *[""] * (len(args) - len(names))], args, strict=True)]
        named += [(name, kwargs[name]) for name in sorted(kwargs)]  # in the order in which `flatten` returns them
        found: dict[str, int] = {}
        count = 0
        for name, value in named:
            arrays = [leaf for leaf in structures.flatten(value)[0] if is_array(leaf)]
            if name and len(arrays) == 1 and is_array(value):
                found[name] = count
            count += len(arrays)
        return found

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Returns example arguments, with arrays of zeros; None if the shape of an array is not fully known.

        Arrays that were given, not described, are returned as they are.
        """
        leaves = list(self._leaves)
        for place in self._places:
            if not is_spec(leaves[place]):
                continue
            sizes = None if leaves[place].shape is None else _sizes(leaves[place].shape)
            if sizes is None or None in sizes:
                return None
            leaves[place] = jnp.zeros([size for size in sizes if size is not None], dtype_of(leaves[place]))
        return self._treedef.unflatten(leaves)  # type: ignore[no-any-return]

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables that the function reads or assigns, in order of their first use.

        Raises:
            ArgumentError: A shape is not fully known, so the function has not been traced.
        """
        if self.program is None:
            raise ArgumentError(
                f"{self._name}.variables",
                found=f"{self!r} has not been traced",
                rule="get_concrete_function traces a function if all shapes are known, and it is called outside of "
                "other functions",
                remedy="pass shapes without None to get_concrete_function",
            )
        return self.program.variables

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The trainable variables that the function reads or assigns, in order of their first use."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def arrays(self) -> list[Any]:
        """The arrays, or shapes and dtypes, for which the function was traced, in the order of its parameters."""
        return [self._leaves[place] for place in self._places]

    @property
    def array_names(self) -> list[str]:
        """The names of the function's array parameters; ``args_N`` for an array inside a structure."""
        named = {place: name for name, place in self._names.items()}
        return [named.get(place, f"args_{place}") for place in range(len(self._places))]

    def filled(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns a call's positional and keyword arguments, from the given arrays and the values fixed at creation."""
        leaves = list(self._leaves)
        for place, array in zip(self._places, arrays, strict=True):
            leaves[place] = array
        return self._treedef.unflatten(leaves)  # type: ignore[no-any-return]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Calls the compiled function with the given arrays; all other arguments were fixed at creation.

        Args:
            *arrays: Arrays, in the order of the arguments for which it was created.
            **named: Arrays by parameter name.

        Raises:
            ArgumentTypeError: The number of arrays, a name, a shape or a dtype does not match.
        """
        given = dict(enumerate(arrays))
        for name, value in named.items():
            if name not in self._names or self._names[name] in given:
                raise self._mismatch_error(
                    f"the argument {name!r} was passed twice, or is not a parameter for an array"
                )
            given[self._names[name]] = value
        if set(given) != set(range(len(self._places))):
            raise self._mismatch_error(f"{len(given)} arrays were passed")
        args, kwargs = self.filled([self._fitted(one, given[number]) for number, one in enumerate(self.arrays)])
        return self.function(*args, **kwargs)

    def _fitted(self, wanted: Any, value: Any) -> Any:
        if isinstance(value, DistributedValues) or (value is wanted and isinstance(value, Variable)):
            return value
        dtype = dtype_of(wanted)
        array = from_numpy(value, dtype) if hasattr(value, "dtype") else from_python(value, dtype)
        if array is None:
            raise self._mismatch_error(f"{value!r} was passed")
        sizes = None if wanted.shape is None else _sizes(wanted.shape)
        shape = tuple(array.shape)
        fits = sizes is None or (
            len(sizes) == len(shape) and all(one in (None, two) for one, two in zip(sizes, shape, strict=True))
        )
        if not fits or canonical_dtype(array.dtype) != dtype:
            raise self._mismatch_error(f"an array {array.dtype}{list(shape)} was passed")
        return as_array(array, dtype)  # drops a weak type, which would cause another trace

    def __deepcopy__(self, memo: dict[int, Any]) -> ConcreteFunction:
        if copy.deepcopy(self.function, memo) is self.function:
            return self
        raise ArgumentError(
            "copy.deepcopy",
            found=f"{self!r} of a copied object",
            rule="a concrete function is a traced program of the variables of the original, which a copy would assign",
            remedy="copy the object before get_concrete_function, which gives the copy a program of its own",
        )

    def _mismatch_error(self, found: str) -> ArgumentTypeError:
        return ArgumentTypeError(
            self._name,
            found=f"{found} to {self!r}",
            rule="a concrete function can be called only with arrays of the shapes and dtypes that it was created for; "
            "its other arguments are fixed",
            remedy="pass arrays of these shapes and dtypes, or call the function itself",
        )

    def __repr__(self) -> str:
        arrays = (self._leaves[place] for place in self._places)
        named = {place: name for name, place in self._names.items()}
        shown = (f"{named.get(i, f'arg{i}')}: {dtype_of(one)}{_dims(one)}" for i, one in enumerate(arrays))
        return f"<concrete function {self._name}({', '.join(shown)})>"


def parameters_of(python_function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a Python function, without `self` if the function is a bound method."""
    parameters = list(inspect.signature(python_function).parameters.values())
    bound = hasattr(python_function, "__wrapped__") and [one.name for one in parameters[:1]] == ["self"]
    return parameters[bound:]


def is_array(leaf: object) -> bool:
    """Returns whether a leaf of the arguments is an array, a variable, a per-replica value or the spec of an array."""
    return isinstance(leaf, (jax.Array, np.ndarray, DistributedValues, Variable)) or is_spec(leaf)


def _sizes(shape: Any) -> tuple[int | None, ...] | None:
    """Returns the sizes of a shape, which may be a TensorFlow shape; None if its rank is unknown."""
    try:
        return tuple(None if size is None else int(size) for size in shape)
    except (TypeError, ValueError):
        return None


def _dims(value: Any) -> str:
    sizes = None if value.shape is None else _sizes(value.shape)
    return "[...]" if sizes is None else f"[{','.join('any' if one is None else str(one) for one in sizes)}]"


# Converts a function that reads and assigns variables to a pure function, for export from the process.


@dataclasses.dataclass(frozen=True)
class Pure:
    """A traced function in pure form, which takes variable values as inputs and returns their new values.

    Attributes:
        call: A function from the values of `reads` and the inputs, as flat lists, to the new values of `assigns` and
            the arrays of the results, as one flat list.
        reads: The variables that it reads.
        assigns: The variables that it assigns.
        output: The structure of its result, with ``jax.ShapeDtypeStruct`` for arrays.
    """

    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    reads: tuple[Any, ...]
    assigns: tuple[Any, ...]
    output: Any


def as_pure(
    python_function: Callable[..., Any], inputs: Sequence[Any], called: str, *, aggregates: bool = False
) -> Pure:
    """Traces a function that uses variables, and returns a pure function of the variables' values (`Pure`).

    Args:
        python_function: A Python function that may read and assign variables, such as `Function.python_function`.
        inputs: Its positional arguments, a tuple with ``jax.ShapeDtypeStruct`` for arrays.
        called: The caller's name for messages.
        aggregates: Whether sync-on-read variables have one value, the aggregate of their components.

    Raises:
        ArgumentError: The function creates variables, returns per-replica values, or uses values of an enclosing
            trace.
    """
    store = FunctionStore(aggregates=aggregates)
    leaves, treedef = structures.flatten(inputs)
    dynamic = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
    results: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        store.base_trace = current_trace()
        filled = list(leaves)
        for place, array in zip(dynamic, arrays, strict=True):
            filled[place] = array
        with within(store=store, listeners=(store,)):
            out = python_function(*treedef.unflatten(filled))
            out_leaves, out_tree = structures.flatten(out)
            # An exported program returns values, so a variable in the result is read.
            out_leaves = [leaf.read_value() if isinstance(leaf, Variable) else leaf for leaf in out_leaves]
        arrays_out = [jnp.asarray(leaf) for leaf in out_leaves if _is_exported_array(leaf)]
        # Not the tracers, which are invalid after the trace: `jax.checking_leaks` would report them.
        results[:] = [out_tree, *map(_described, out_leaves)]
        return [*take_values(store.staged), *arrays_out]

    with caches.fresh():
        staged = stage(flat, [leaves[place] for place in dynamic]).with_own_constants()
    out_tree, *out_leaves = results
    _check(store, staged.constants, out_leaves, called)
    reads = tuple(variable for variable, _ in store.captured.values())
    places = {id(variable): place for place, variable in enumerate(reads)}
    sources = [places[id(one.source)] if isinstance(one, CaptureTracer) else None for one in staged.constants]

    def call(state: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        pairs = zip(sources, staged.constants, strict=True)
        result: list[Any] = staged([one if at is None else state[at] for at, one in pairs], operands)
        return result

    assigns = tuple(variable for variable, _ in store.staged.values())
    return Pure(call, reads, assigns, out_tree.unflatten(out_leaves))


def _is_exported_array(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _described(leaf: Leaf) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_exported_array(leaf) else leaf


def _check(store: FunctionStore, constants: Sequence[Any], out_leaves: Sequence[Any], called: str) -> None:
    found: str | None = None
    remedy = ""
    if store.new:
        found = f"the function creates variables ({', '.join(one.name for one in store.new)})"
        remedy = "call the function once before exporting it, so that its variables exist"
    elif any(isinstance(leaf, DistributedValues) for leaf in out_leaves):
        found = "the function returns per-replica values"
        remedy = "reduce or gather them in the function (strategy.reduce, strategy.gather), and return the result"
    elif any(isinstance(one, Tracer) and not isinstance(one, CaptureTracer) for one in constants):
        found = "the function uses a value of an enclosing trace"
        remedy = "export it outside of jit, grad, vmap and strategy.run, or pass the value as an argument"
    if found is not None:
        raise ArgumentError(
            called,
            found=found,
            rule="an exported program can use only its arguments and existing variables, and can return only arrays",
            remedy=remedy,
        )
