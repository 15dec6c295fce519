"""`function`: the decorator that compiles a Python function that reads and assigns variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from mirrored.compilation.binding import UNCONVERTED, Conversion
from mirrored.compilation.function import Function
from mirrored.errors import ArgumentError


@overload
def function(func: Callable[..., Any]) -> Function: ...


@overload
def function(
    func: None = None, *, donate: bool = ..., input_signature: Sequence[Any] | None = ..., **options: Any
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    func: Callable[..., Any] | None = None,
    *,
    donate: bool = True,
    input_signature: Sequence[Any] | None = None,
    steps_per_call: int | None = None,
    conversion: Conversion = UNCONVERTED,
    **options: Any,
) -> Any:
    """Decorator that compiles a function that reads and assigns variables; usable with or without arguments.

    Tracing: the function is traced once for each combination of the structure, order and types of keys, shapes, dtypes
    and static values (Python numbers, strings, other objects) of its arguments. Python side effects happen only during
    tracing. The trace finds the variables that the function reads and assigns. Values from globals, closures and
    attributes become constants of the trace; later changes to them have no effect. A static argument that has been
    mutated causes a new trace, unless it is hashed by identity. A field of a dataclass that does not take part in
    comparisons (``field(compare=False)``) does not count. Another strategy scope, other JAX settings, a weakly typed
    array in place of another one, and an assignment that changes the shape of a variable cause a new trace, too.
    Another sharding of an argument does not: JAX compiles the traced program again.

    Creating variables: if the first trace creates variables (other than the slots of an optimizer), the function is
    traced a second time, and only the second program runs, from the first call on. Python code such as
    ``if self.w is None`` then takes the branch of every later call; an assignment in the branch that creates a variable
    never runs. This holds for the variables that replicas create inside `run`, too.

    Datasets: a function that takes elements from a dataset or its iterator runs as Python at every call, and each
    function that it passes to `run` is compiled once. In the latter, too, globals and attributes are constants: pass a
    value that changes from step to step, such as a key, as an argument of `run`, or keep it in a `Variable`. (A new
    value of a local variable that it closes over causes a new trace.) The first call with a dataset as an argument runs
    as Python; if it takes no elements, later calls are compiled. If the dataset is not an argument, the first call
    executes the code before the loop twice. Its first changes to Python objects are undone, unless the code creates
    variables or the dataset, or the function can reach a Python iterator or a queue.

    Tapes: calls under a tape and others share a trace. The first call under a tape traces two kinds of functions once
    more, which `trace_count` does not count; globals, closures and attributes are then constants with the values they
    have at that call. One kind reads a variable after assigning it: such a read has the derivative of the variable. The
    other calls `run` of a deterministic strategy, which then sums cotangents in a fixed order.

    Errors: an error during tracing leaves all variables unchanged. After a later exception, such as Ctrl-C, all
    variables have their values from before or all have those from after the call. Several threads can call the
    function; one runs at a time.

    Context: cross-replica, or without a strategy. Inside a replica or another function, it runs as part of the caller,
    and an exception undoes the assignments made in it.

    Args:
        func: The function. Inside it, `strategy.run` runs on all replicas in one program.
        donate: Whether to reuse the memory of assigned variables for their new values. An error while the program runs
            then loses the values. With False variables get the old ones back, at the cost of the memory of both.
        input_signature: The shapes and dtypes that arguments must have (objects with `shape`, None for any size, and
            `dtype`).
        steps_per_call: The number of steps per execution: one dispatch runs them as one compiled scan. The function is
            then called with a sequence of that many argument tuples, and each array that it returns has a leading
            dimension of steps.
        conversion: What is traced and returned in place of the function and its result. The facade's `tf.function`
            applies AutoGraph with it, and returns tensors. Default: the function and its result themselves.
        **options: `reduce_retracing`, `autograph`, `jit_compile` and `experimental_...`, which are accepted for
            compatibility with TensorFlow and ignored.

    Returns:
        A `Function`.

    Raises:
        ArgumentError: The arguments do not match `input_signature`, or `steps_per_call` is not a positive integer.
        VariableError: The function creates a variable and does not keep it, or creates one on every call.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable(1.0)
        >>> @mr.function
        ... def double():
        ...     return v.assign(2 * v)
        >>> float(double()), float(double()), double.trace_count
        (2.0, 4.0, 1)

    TensorFlow: `tf.function`. A Python `if` on a traced value raises an error; the facade's `tf.function` converts it.
    """
    known = {"reduce_retracing", "autograph", "jit_compile", "name"}
    unknown = [option for option in options if option not in known and not option.startswith("experimental_")]
    if unknown:
        raise TypeError(f"function() got an unexpected keyword argument {unknown[0]!r}")
    if steps_per_call is not None and (not isinstance(steps_per_call, (int, np.integer)) or steps_per_call < 1):
        raise ArgumentError(
            "function",
            found=f"steps_per_call={steps_per_call!r}",
            rule="one call runs a whole number of steps, at least one",
            remedy="pass the number of batches of a call, or omit steps_per_call for functions of one step",
        )
    if func is None:
        return lambda decorated: function(
            decorated,
            donate=donate,
            input_signature=input_signature,
            steps_per_call=steps_per_call,
            conversion=conversion,
            **options,
        )
    return Function(
        func,
        donate=donate,
        input_signature=input_signature,
        name=options.get("name"),
        steps_per_call=steps_per_call,
        conversion=conversion,
    )
