"""`custom_gradient` and `stop_gradient`, and the tape records of calls with a custom gradient."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax.arrays import as_array
from mirrored._jax.boxes import Array, Box
from mirrored._jax.jaxprs import aval_of, is_inexact
from mirrored._jax.traces import current_trace, is_eval
from mirrored._jax.trees import tree_flatten, tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.errors import ArgumentError, ArgumentTypeError, MergeError, TapeError
from mirrored.runtime.ambient import ReadableVariable, ambient, listening
from mirrored.runtime.entry_point import restoring
from mirrored.runtime.merge import is_under_transform_error, runs_in_place
from mirrored.tape.backward import is_variable, shape_of
from mirrored.tape.no_derivative import Key, closed_over
from mirrored.tape.record import Pulled, Record, Runner, completed
from mirrored.tape.replica_rules import in_context_of_replica
from mirrored.tape.trace import TapeTrace
from mirrored.values.sparse_rows import SparseRows

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def stop_gradient(value: T) -> T:
    """Returns `value` as a constant, through which no gradient flows.

    Args:
        value: An array, a variable, or a structure of them.

    Example:
        >>> from mirrored.tape import GradientTape
        >>> x = jnp.array(3.0)
        >>> with GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = stop_gradient(x) * x
        >>> float(tape.gradient(y, x))
        3.0

    TensorFlow: `tf.stop_gradient`.
    """
    stopped: T = tree_map(
        lambda leaf: jax.lax.stop_gradient(leaf.read_value() if is_variable(leaf) else leaf), value, is_leaf=is_variable
    )
    return stopped


def custom_gradient(function: F) -> F:
    """Decorates a function that returns both its result and a function that computes its gradient.

    Args:
        function: Takes arrays and returns a pair of a result and a gradient function. Keyword arguments are not
            differentiated. The result is an array or a structure of arrays. The gradient function takes the gradients
            of the results and returns one gradient per positional argument. If `function` reads trainable variables,
            the gradient function must accept ``variables=``, a list of these variables, and return a pair: the
            gradients of the arguments and a list of the gradients of the variables.

    Returns:
        A function of the same arguments that returns the result.

    Raises:
        ArgumentError: While differentiating: the number of gradients is not that of the positional arguments, or a
            gradient has another shape than its argument or variable. Its dtype is converted.
        ArgumentTypeError: `function` reads trainable variables, and its gradient function does not accept
            ``variables=``.

    Example:
        >>> from mirrored.tape import GradientTape
        >>> @custom_gradient
        ... def clipped(x):
        ...     return x, lambda upstream: jnp.clip(upstream, -1.0, 1.0)
        >>> x = jnp.array(2.0)
        >>> with GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = 5.0 * clipped(x)
        >>> float(tape.gradient(y, x))
        1.0

    TensorFlow: `tf.custom_gradient`. The custom gradient also applies under `jax.grad` and inside a nested `jit` or
    `lax.scan`, if the function reads no variables. Unlike in TensorFlow, a second derivative by nested tapes in eager
    code does not flow through values that `function` computes and its gradient function uses. A tape around a compiled
    function or compiled run that opens a tape of its own around the call gets the derivative of the body. So does the
    outer one of two nested tapes around a function under `jit`, `jax.checkpoint`, `lax.scan`, `cond` or `vmap` that
    contains the call. In JAX, nested `jax.grad` of a `jax.custom_vjp` function does the same.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if is_eval(trace):
            result = function(*args, **kwargs)[0]
            return result if ambient().replica is None else tree_map(_copied, result, is_leaf=is_variable)
        call = _Call(function, args, kwargs)
        return call.on_tapes(trace) if isinstance(trace, TapeTrace) else call.under_transform()

    return wrapped  # type: ignore[return-value]


def _refusing_gradient(value: Any, name: str) -> Any:
    """Returns `value` in a form that raises a `TapeError` when it is differentiated."""

    def refuse(_: Any) -> Any:
        raise TapeError(
            "GradientTape.gradient",
            found=f"a tape outside run differentiates {name!r}, a function with a custom gradient that calls "
            "merge_call in a compiled replica function",
            rule="such a gradient function runs once per replica, so the tape must be in the replica function",
            remedy="open the tape inside the function given to run",
        )

    @jax.custom_vjp
    def identity(array: Any) -> Any:
        return array

    identity.defvjp(refuse, lambda _residuals, cotangent: (cotangent,))
    return identity(value) if isinstance(value, jax.Array) and is_inexact(aval_of(value)) else value


def _copied(leaf: Any) -> Any:
    """Copies an array, so that replicas return distinct objects.

    TensorFlow does so, too. Any other object is returned unchanged.
    """
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


class _Call:
    """One call of a function with a custom gradient."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._kwargs = kwargs
        leaves, self._tree = tree_flatten(args, is_leaf=is_variable)
        self._leaves = [_as_array(leaf) for leaf in leaves]
        self._arrays = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, jax.Array)]

    @restoring
    def on_tapes(self, innermost: TapeTrace) -> Any:
        """Runs the function without recording it, then records the call as one operation on every enclosing tape."""
        tapes = list(_tapes_from(innermost))
        operands = [self._leaves[i] for i in self._arrays]
        sorted_operands = [tape.split_operands(operands) for tape in tapes]
        with _touching(tapes) as touched, listening(_Collector()) as read:
            result, gradient = self._function(*self._tree.unflatten(self._leaves), **self._kwargs)
            leaves, tree = tree_flatten(result, is_leaf=is_variable)
            outputs = [_untracked(_as_array(leaf), tapes) for leaf in leaves]
        variables = list(read.variables.values())
        takes_variables = _takes_variables(gradient)
        if variables and not takes_variables:
            raise _needs_variables_error(self._function, variables)
        gradient = in_context_of_replica(gradient)
        avals = [aval_of(output) for output in outputs]
        tracked = [is_inexact(aval) for aval in avals]
        for tape, (_, keys, watched) in reversed(list(zip(tapes, sorted_operands, strict=True))):
            record = CustomRecord(keys, watched, gradient, avals, [aval_of(operand) for operand in operands])
            record.reach(tape, variables)
            used_keys = touched[id(tape)].keys() - set(keys) - read.keys_of(tape)
            if used_keys:
                record.no_derivative = closed_over(
                    list(used_keys), getattr(self._function, "__name__", "custom_gradient")
                )
            outputs = tape.add(record, outputs, tracked, operands) if record.in_keys or used_keys else outputs
        return tree.unflatten(outputs)

    def under_transform(self) -> Any:
        """Calls the function through `jax.custom_gradient`, because a JAX transform differentiates the call."""
        try:
            return self._unless_merged([])
        except _ReadVariables as read:
            # A tape around the compiled function asks for the gradients of the variables that the function has read.
            # JAX refuses values that it closes over, so the function runs again, with the variables as arguments.
            return self._unless_merged(read.variables)

    def _unless_merged(self, variables: list[Any]) -> Any:
        """Calls the function with its custom gradient, or without a gradient if the function calls `merge_call`.

        JAX traces a function with a custom gradient by itself, where replicas cannot wait for each other. In the trace
        of the replica function they can, and no tape inside it is open. A tape around the run gets an error.
        """
        try:
            return self._by_jax(variables)
        except MergeError as error:
            if not (is_under_transform_error(error) and runs_in_place()):
                raise
        result = self._function(*self._tree.unflatten(self._leaves), **self._kwargs)[0]
        name = getattr(self._function, "__name__", "custom_gradient")
        return tree_map(lambda leaf: _refusing_gradient(_as_array(leaf), name), result, is_leaf=is_variable)

    def _by_jax(self, variables: list[Any]) -> Any:
        structure: list[Any] = []
        trainable = [place for place, variable in enumerate(variables) if variable.trainable]

        @jax.custom_gradient  # type: ignore[untyped-decorator]
        def of_arrays(arrays: list[Any], values: list[Any]) -> Any:
            leaves = list(self._leaves)
            for position, array in zip(self._arrays, arrays, strict=True):
                leaves[position] = array
            with listening(_Substitution(variables, values)), listening(_Collector()) as read:
                result, gradient = self._function(*self._tree.unflatten(leaves), **self._kwargs)
                outputs, tree = tree_flatten(result, is_leaf=is_variable)
                outputs = [_as_array(output) for output in outputs]
            if read.everything and not variables:
                raise _ReadVariables(list(read.everything.values()))
            structure[:] = [tree]

            def pull(cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
                given = [variables[place] for place in trainable]
                if given and not _takes_variables(gradient):
                    raise _needs_variables_error(self._function, given)
                of_values = [jnp.zeros_like(value) for value in values]
                with listening(_Substitution(variables, values)):
                    output = gradient(*cotangents, variables=given) if given else gradient(*cotangents)
                if given:
                    output, of_variables = output
                    for place, one in zip(trainable, _listed(of_variables, len(given)), strict=True):
                        of_values[place] = of_values[place] if one is None else _of_variable(one, variables[place])
                listed = enumerate(zip(_listed(output, len(arrays)), arrays, strict=True))
                return [
                    jnp.zeros_like(array) if one is None else _of_operand(one, aval_of(array), place)
                    for place, (one, array) in listed
                ], of_values

            return outputs, pull

        values = [variable.read_value() for variable in variables]
        outputs = of_arrays([self._leaves[i] for i in self._arrays], values)
        return structure[0].unflatten(outputs)


class CustomRecord(Record):
    """The tape record of a call with a custom gradient; its pullback calls the user's gradient function."""

    __slots__ = ("avals", "gradient", "no_derivative", "operands", "reached_variables", "variables")

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        gradient: Callable[..., Any],
        avals: list[Any],
        operands: list[Any],
    ) -> None:
        super().__init__(in_keys, watched)
        self.gradient = gradient
        self.avals = avals
        self.operands = operands
        self.no_derivative = None
        self.variables: list[Any] = []
        self.reached_variables: list[int] = []

    def reach(self, tape: TapeTrace, variables: list[Any]) -> None:
        """Adds the watched variables that the function has read to the inputs of this tape record."""
        assert tape.recorder is not None
        self.variables = variables
        self.reached_variables = [i for i, variable in enumerate(variables) if tape.recorder.watches(variable)]
        self.in_keys = [*self.in_keys, *(tape.recorder.read_key(variables[i]) for i in self.reached_variables)]

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        full = completed(cotangents, self.avals)
        of_variables: Sequence[Any] = ()
        if self.variables:
            output, of_variables = self.gradient(*full, variables=self.variables)
        else:
            output = self.gradient(*full)
        gradients = _listed(output, len(self.operands))
        pulled = [_of_operand(gradients[i], self.operands[i], i) for i in self.watched]
        if self.reached_variables:
            listed = _listed(of_variables, len(self.variables))
            pulled += [_of_variable(listed[i], self.variables[i]) for i in self.reached_variables]
        return [(i, gradient) for i, gradient in enumerate(pulled) if gradient is not None]


def _tapes_from(innermost: TapeTrace) -> Iterator[TapeTrace]:
    trace: Any = innermost
    while isinstance(trace, TapeTrace):
        if trace.recorder is not None and trace.touched is None:
            yield trace
        trace = trace.parent


@contextmanager
def _touching(tapes: Sequence[TapeTrace]) -> Iterator[dict[int, dict[Key, None]]]:
    """Runs a ``with`` block without recording; yields, per tape, the keys of the tracked values that the block uses."""
    if not tapes:
        yield {}
        return
    with tapes[-1].noting_uses() as touched, _touching(tapes[:-1]) as of_inner:
        yield {id(tapes[-1]): touched, **of_inner}


class _Collector:
    """A read listener that collects all trainable variables that are read, with the values that the reads return."""

    def __init__(self) -> None:
        self.variables: dict[int, Any] = {}
        self.everything: dict[int, Any] = {}  # also the variables that are not trainable
        self._values: list[Any] = []

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> Any:
        self.everything[id(variable)] = variable
        if variable.trainable:
            self.variables[id(variable)] = variable
            self._values.append(value)
        return value

    def keys_of(self, tape: TapeTrace) -> set[Key]:
        """Returns the keys by which `tape` tracks the variable values that this listener has collected.

        A value that several tapes track is a box within a box, so each payload is looked up, too.
        """
        keys: set[Key] = set()
        for value in self._values:
            while True:
                _, found, _ = tape.split_operands([value])
                keys.update(found)
                if type(value) is not Box:
                    break
                value = value.payload
        return keys

    def tracks(self, value: object) -> bool:
        """Returns False, because this listener does not record operations."""
        return False

    def on_write(self, variables: Sequence[ReadableVariable]) -> None:
        pass

    def on_reassign(self, variable: ReadableVariable, value: object) -> None:
        pass


class _ReadVariables(Exception):
    """Raised to end a traced call that has read variables; the call is repeated with the variables as arguments."""

    def __init__(self, variables: list[Any]) -> None:
        super().__init__()
        self.variables = variables


class _Substitution(_Collector):
    """A read listener that replaces the values of some variables, so that a JAX transform sees them as arguments."""

    def __init__(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        super().__init__()
        self._given = {id(variable): value for variable, value in zip(variables, values, strict=True)}

    def on_read(self, variable: ReadableVariable, value: jax.Array) -> Any:
        return self._given.get(id(variable), value)


def _untracked(value: Leaf, tapes: Sequence[TapeTrace]) -> Any:
    for tape in tapes:
        if type(value) is Box and value.owner is tape:
            value = value.payload
    return value if type(value) is Array or not tapes else tapes[-1].copied(value)


def _as_array(leaf: Leaf) -> Any:
    if is_variable(leaf):
        return leaf.read_value()
    if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic)):
        return as_array(leaf)
    return leaf


def _takes_variables(gradient: Callable[..., Any]) -> bool:
    parameters = inspect.signature(gradient).parameters.values()
    return any(one.name == "variables" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _is_one(gradient: object) -> bool:
    return gradient is None or isinstance(gradient, SparseRows)


def _listed(output: PyTree, expected: int) -> list[Any]:
    gradients = jax.tree.leaves(output, is_leaf=_is_one) if isinstance(output, (list, tuple, dict)) else [output]
    if len(gradients) != expected:
        raise ArgumentError(
            "custom_gradient",
            found=f"custom_gradient function expected to return {expected} gradients, "
            f"but returned {len(gradients)} instead.",
            rule="the gradient function must return one gradient per positional argument",
            remedy="return a list with one gradient (or None) per positional argument",
        )
    return gradients


def _of_operand(gradient: Any, aval: Any, place: int) -> Any:
    return _fitted(gradient, aval, f"array {place} of the arguments") if is_inexact(aval) else gradient


def _of_variable(gradient: Any, variable: ReadableVariable) -> Any:
    return _fitted(gradient, variable, f"the variable {variable.name!r}")


def _fitted(gradient: Any, like: Any, what: str) -> Any:
    """Converts a gradient to the dtype of the value to which the gradient belongs, after checking the shape."""
    if gradient is None:
        return None
    wanted = shape_of(like)
    if isinstance(gradient, SparseRows):
        shape = gradient.dense_shape if isinstance(gradient.dense_shape, tuple) else wanted
        gradient = SparseRows(gradient.values, gradient.indices, shape).to_dense()
    value, dtype = _as_array(gradient), like.dtype
    is_array = isinstance(value, jax.Array)
    is_other = is_array and value.dtype != dtype
    complex_of_real = is_other and jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating)
    if not is_array or value.shape != wanted or complex_of_real:
        found = f"{value.dtype}{list(value.shape)}" if is_array else f"a {type(value).__name__}"
        raise ArgumentError(
            "custom_gradient",
            found=f"the gradient with respect to {what}, {dtype}{list(wanted)}, is {found}",
            rule="a gradient is an array of the shape of its argument or variable, and real if that is",
            remedy="compute it from the gradients of the results, for instance g * jnp.ones(x.shape); or return None",
        )
    return value if value.dtype == dtype and not value.weak_type else jnp.asarray(value, dtype)


def _needs_variables_error(function: Callable[..., Any], variables: Sequence[Any]) -> ArgumentTypeError:
    names = ", ".join(repr(getattr(variable, "name", "a variable")) for variable in variables)
    return ArgumentTypeError(
        "custom_gradient",
        found=f"{getattr(function, '__name__', function)!r} reads the variables {names}, "
        "but its gradient function does not accept 'variables'",
        rule="grad_fn must accept a keyword argument 'variables' if the function reads trainable variables",
        remedy="define it as: def grad(*upstream, variables=None): return argument_gradients, [gradient per variable]",
    )
