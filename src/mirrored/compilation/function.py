"""`Function`: a compiled Python function that reads and assigns variables."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from mirrored._jax.traces import program_settings, trace_settings
from mirrored.compilation.binding import UNCONVERTED, Bindings, Code, Conversion, bind, reference_to, with_copies
from mirrored.compilation.captured_objects import refuse_created_again
from mirrored.compilation.concrete import ConcreteFunction
from mirrored.compilation.frozen_state import PythonState, stop_iteration_error
from mirrored.compilation.input_signature import check_signature
from mirrored.compilation.program import Program
from mirrored.compilation.program_checks import explaining_uses
from mirrored.compilation.ragged import as_uneven_call, checked_call, log_ragged, no_program_error, uneven_error
from mirrored.compilation.retraces import difference, log_retrace
from mirrored.compilation.rewinding import Names, undo_trace
from mirrored.compilation.scan import stacked_steps
from mirrored.compilation.signature import (
    Arguments,
    Ragged,
    RaggedWhileTracing,
    Surroundings,
    flatten_arguments,
    flatten_steps,
    has_ragged,
    quick_key,
    steps_of,
)
from mirrored.compilation.static_keys import static_key
from mirrored.config import functions_run_eagerly
from mirrored.errors import ArgumentError
from mirrored.runtime.ambient import Ambient, ambient, within
from mirrored.runtime.element_draws import DrewWhileTracing, element_draws
from mirrored.runtime.entry_point import entry_point, noted_state
from mirrored.runtime.hooks import EndOfElements, IteratedAsPython, IteratedWhileTracing, RunInterceptor
from mirrored.runtime.rollback import with_rollback
from mirrored.variables.creation import constructor_calls
from mirrored.variables.open_shapes import OpenShapes, valid_program
from mirrored.variables.state_lock import exempt_from_lock, locked_with_rollback, tracing

if TYPE_CHECKING:
    from mirrored.strategies.strategy import Strategy


class Function(Code):
    """A function compiled by the decorator `function`, with one traced program per argument signature.

    Attributes:
        python_function: The function that it compiles.
        trace_count: The number of times it has been traced.
        retrace_reason: The reason for the last retrace, in one line; None before the second trace.
        steps_per_call: The number of steps that one call runs; None if it runs the function once.

    Example:
        >>> import jax.numpy as jnp
        >>> import mirrored as mr
        >>> double = mr.function(lambda x: 2 * x)
        >>> double(jnp.ones(3)), double(jnp.zeros(3)), double.trace_count
        (Array([2., 2., 2.], dtype=float32), Array([0., 0., 0.], dtype=float32), 1)
        >>> _ = double(jnp.ones(4))
        >>> double.trace_count
        2

    TensorFlow: the result of `tf.function`.
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        *,
        donate: bool = True,
        input_signature: Sequence[Any] | None = None,
        name: str | None = None,
        steps_per_call: int | None = None,
        conversion: Conversion = UNCONVERTED,
    ) -> None:
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self._conversion = conversion
        self._traces = self._retraces = 0
        self.retrace_reason: str | None = None
        self._decorated = python_function  # whose `**kwargs`, if it has them, show the order of keyword arguments
        self._donate, self.steps_per_call, self._input_signature = donate, steps_per_call, input_signature
        self._name: str = name or str(getattr(python_function, "__name__", "function"))
        self._programs: dict[Hashable, list[Program]] = {}  # newest first: see `retraces`
        self._uneven: set[Hashable] = set()  # the keys of the calls that run eagerly (`RaggedWhileTracing`)
        self._quick: dict[Hashable, Program] = {}
        self._has_met_ragged = self._is_checked = self._takes_none = self._draws = False
        self._last: tuple[Arguments, Surroundings, OpenShapes] | None = None
        self._arguments: list[Arguments] = []
        self._interceptor: RunInterceptor | None = None
        self._by_strategy: dict[tuple[Any, Hashable], Function] = {}
        self._by_instance: Bindings[Function] = Bindings()
        self._method: tuple[Function, Callable[[], Any]] | None = None

    @property
    def trace_count(self) -> int:
        """The number of times that this function has been traced, including traces inside `Strategy.run`."""
        return self._traces + sum(one.trace_count for one in (*self._by_strategy.values(), self._interceptor) if one)

    @property
    def has_met_ragged(self) -> bool:
        """Whether any call so far received uneven per-replica batches, and therefore ran eagerly."""
        return self._has_met_ragged or any(made.has_met_ragged for made in self._by_strategy.values())

    @entry_point
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program for the signature of these arguments; traces and compiles it at the first call."""
        here = ambient()
        inline = here.store is not None or here.runner is not None or functions_run_eagerly()
        if self.steps_per_call is not None:
            return (self._steps_inline if inline else self._call_steps)(here, *args, **kwargs)
        args, kwargs = self._fitted(args, kwargs)
        if inline:
            return self._inline(here, args, kwargs)
        if self._interceptor is not None:
            return self._driven(args, kwargs)
        arrays: list[Any] = []
        quick = None if kwargs else quick_key(args, arrays)
        if quick is not None:
            quick = (quick, here.strategies, here.replica is None, trace_settings())
            program = self._quick.get(quick)
            if program is not None and (not program.shapes or program.shapes.changed() is None):
                return program(arrays)
        return self._call_by_key(args, kwargs, here, quick)

    def _call_by_key(self, args: tuple[Any, ...], kwargs: dict[str, Any], here: Ambient, quick: Hashable) -> Any:
        """Runs the program for the full signature of the arguments, and stores it under the quick key."""
        try:
            arguments = flatten_arguments(args, kwargs, here.device_assignment, self._decorated)
        except Ragged:
            return self._call_eagerly(args, kwargs, here)
        if self._draws and element_draws() is not None:
            return self._as_python(*args, **kwargs)
        if not self._takes_none and any(isinstance(leaf, IteratedAsPython) for leaf in arguments.leaves):
            return self._call_with_dataset(args, kwargs)
        try:
            program = self._program(arguments, here, quick)
        except IteratedWhileTracing:
            self._interceptor = RunInterceptor(self._alike, static_key)
            return self._driven(args, kwargs)
        except DrewWhileTracing:
            self._draws = True
            return self._as_python(*args, **kwargs)
        except RaggedWhileTracing:
            return self._call_eagerly(args, kwargs, here)
        return program(arguments.arrays, arguments)

    def _call_with_dataset(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function with a dataset argument as plain Python, to find out whether the dataset is iterated."""
        self._interceptor = interceptor = RunInterceptor(self._alike, static_key)
        try:
            result = self._driven(args, kwargs)
            self._takes_none = not interceptor.has_iterated
        finally:
            if not interceptor.has_iterated:
                self._interceptor = None
        return result

    def _fitted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Converts one step's arguments to match the `input_signature`, if any; otherwise returns them unchanged."""
        if self._input_signature is None:
            return args, kwargs
        return check_signature(self.python_function, self._input_signature, args, kwargs)

    def _inline(self, here: Ambient, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the Python function inline, as a part of the caller; undoes its assignments after an exception."""
        if functions_run_eagerly():
            return self.python_function(*args, **kwargs)
        traced = here.store is not None and here.store.captures
        function = self.traced_function if traced else self._as_python
        return with_rollback(lambda: function(*args, **kwargs))

    @functools.cached_property
    def traced_function(self) -> Callable[..., Any]:
        """The function that JAX traces: the Python function with converted code, wrapped to convert its results."""
        return self._conversion.with_result(self._with_converted_code)

    @functools.cached_property
    def _with_converted_code(self) -> Callable[..., Any]:
        """The Python function after code conversion, for example by AutoGraph."""
        code = self._conversion.code
        return self.python_function if code is None else code(self.python_function)

    @functools.cached_property
    def _as_python(self) -> Callable[..., Any]:
        """The uncompiled Python function, wrapped to convert its results."""
        return self._conversion.with_result(self.python_function)

    def _call_steps(self, here: Ambient, batches: Sequence[Any]) -> Any:
        """Runs `steps_per_call` steps, one per batch, in one dispatch."""
        arguments, arrays = self._flattened((batches,), {}, here)
        return self._program_or_error(arguments, here)(arrays, arguments)

    def _steps_inline(self, here: Ambient, batches: Sequence[Any]) -> Any:
        steps = self._steps(batches)
        return stacked_steps(with_rollback(lambda: [self._inline(here, args, {}) for args in steps]))

    def _steps(self, batches: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [self._fitted(args, {})[0] for args in steps_of(batches, self.steps_per_call, self._name)]

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any], here: Ambient) -> tuple[Arguments, list[Any]]:
        """Returns the first step's flattened arguments and a list of the arrays of all steps."""
        if self.steps_per_call is None:
            args, kwargs = self._fitted(args, kwargs)
            try:
                arguments = flatten_arguments(args, kwargs, here.device_assignment, self._decorated)
            except Ragged:
                raise uneven_error(self._name) from None
            return arguments, arguments.arrays
        steps = flatten_steps(self._steps(*args, **kwargs), here.device_assignment, self._name)
        return steps[0], [array for step in steps for array in step.arrays]

    def _alike(self, function: Callable[..., Any]) -> Function:
        """Compiles another Python function with the same options as this one."""
        # The conversion of a bound method returns the method, whatever it is given.
        conversion = (self if self._method is None else self._method[0])._conversion
        return Function(function, donate=self._donate, conversion=conversion)

    def _driven(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a function with a dataset loop as plain Python, but compiles each `strategy.run` in the function."""
        interceptor, outer = self._interceptor, ambient().interceptor
        try:
            with within(interceptor=interceptor):
                return self._as_python(*args, **kwargs)
        except EndOfElements as end:
            raise end.error from None
        except StopIteration as end:
            raise stop_iteration_error(self._name) from end
        finally:
            if interceptor is not None and outer is not None:
                outer.has_iterated |= interceptor.has_iterated

    def _program(self, arguments: Arguments, here: Ambient, quick: Hashable = None) -> Program:
        # A `Function` never evicts a program. So strategies and variables live at least as long as the function.
        surroundings = Surroundings(here.strategies, here.replica is None, program_settings())
        key = (arguments.key, *surroundings)
        program = valid_program(self._programs.get(key, ()))
        if program is None:
            with tracing:
                program = valid_program(self._programs.get(key, ()))
                if program is None:
                    if key in self._uneven:
                        raise RaggedWhileTracing
                    try:
                        program = exempt_from_lock(lambda: self._traced(arguments, surroundings))
                    except RaggedWhileTracing:
                        self._uneven.add(key)
                        raise
                    self._programs[key] = [program, *self._programs.get(key, ())]
        if quick is not None:
            self._quick[quick] = program
        return program

    def _program_or_error(self, arguments: Arguments, here: Ambient) -> Program:
        """Returns the program for the arguments; raises an error if the function can only run as plain Python."""
        try:
            return self._program(arguments, here)
        except (IteratedWhileTracing, DrewWhileTracing, RaggedWhileTracing) as ended:
            raise no_program_error(self._name, ended) from None

    def _traced(self, arguments: Arguments, surroundings: Surroundings) -> Program:
        if self._last is not None:
            why = difference(*self._last, arguments, surroundings)
            self.retrace_reason = f"{self._name} is traced again: {why}"
            self._retraces += 1
            log_retrace(self.retrace_reason, self._retraces)
        program, frozen = self._traced_once(arguments)
        if program.created.repeats_trace or (frozen is not None and program.created):
            program, frozen = self._traced_once(arguments)
            if program.created and not program.created.repeats_trace:  # an optimizer meets variables of the first trace
                program, frozen = self._traced_once(arguments)
            refuse_created_again(program.created, self._name)
        if frozen is not None:
            raise frozen
        described = arguments.described()
        self._last = described, surroundings, program.shapes
        self._arguments.append(described)
        return program

    def _traced_once(self, arguments: Arguments) -> tuple[Program, ArgumentError | None]:
        """Traces the function once; returns the program, and an error if the trace turned Python state into constants.

        The error is returned, not raised: a trace that creates variables may draw their initial values, which later
        calls do not. Only the error of the last trace counts.
        """
        python_state = PythonState(self.python_function, arguments.leaves, self._name)
        may_give_up = python_state.may_give_up or has_ragged(arguments.like)
        names = Names(self.python_function, arguments.leaves) if may_give_up else None
        restore, calls = noted_state(), constructor_calls()
        try:
            with explaining_uses(self._name):
                program = Program(
                    self.traced_function, arguments, donate=self._donate, steps=self.steps_per_call, owner=self
                )
        except (IteratedWhileTracing, DrewWhileTracing, RaggedWhileTracing) as ended:
            # What has been traced is executed again. Variables that it has created must stay, with what holds them.
            undo_trace(python_state, names if constructor_calls() == calls else None, ended)
            raise
        except StopIteration as end:
            raise stop_iteration_error(self._name) from end
        finally:
            # An exception that a signal handler raises may skip the exits of context managers.
            restore()
        self._traces += 1
        return program, python_state.frozen_state_error()

    def _call_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any], here: Ambient) -> Any:
        """Calls the function as Python on uneven batches; checks the loss scale of the first call that succeeds."""
        if not self._has_met_ragged:
            self._has_met_ragged = True
            log_ragged(self.python_function, self._name)
        call = functools.partial(as_uneven_call, self._name, self._as_python)
        if self._is_checked or self._programs:
            return locked_with_rollback(lambda: call(*args, **kwargs))
        self._is_checked = True
        try:
            return locked_with_rollback(
                lambda: checked_call(self, self._name, call, args, kwargs, here.device_assignment)
            )
        except BaseException:
            self._is_checked = False
            raise

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the program for the given arguments with JAX, without running it, to inspect its HLO.

        Args:
            *args: Arrays and static arguments, as for a call.
            **kwargs: The same, by name.

        Returns:
            A `jax.stages.Lowered`: `lower(x).compile().as_text()` is the optimized HLO.
        """
        here = ambient()
        arguments, arrays = self._flattened(args, kwargs, here)
        return self._program_or_error(arguments, here).lower(arrays)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Traces this function for the given arguments, and returns the traced program as a `ConcreteFunction`.

        The result takes only the arrays; it keeps the static arguments (numbers, strings, other objects) given here.

        Args:
            *args: Arrays, descriptions of arrays (objects with `shape` and `dtype`), and static arguments. Default:
                `input_signature`.
            **kwargs: The same, by name.

        TensorFlow: `tf.function(f).get_concrete_function`. The result has no graph. If a shape has an
        unknown size, the function is traced when the result is called.
        """
        if not args and not kwargs and self._input_signature is not None:
            args = tuple(self._input_signature)
            if self.steps_per_call is not None:
                args = ([args] * self.steps_per_call,)
        kind = self._conversion.concrete or ConcreteFunction
        concrete = kind(self, self.python_function, args, kwargs, self._name)
        example = concrete.example()
        here = ambient()
        if example is not None and here.store is None and not functions_run_eagerly():
            concrete.program = self._program_or_error(self._flattened(*example, here)[0], here)
        return concrete

    def experimental_get_tracing_count(self) -> int:
        """Returns the number of times that this function has been traced, under TensorFlow's name."""
        return self.trace_count

    @property
    def input_signature(self) -> Sequence[Any] | None:
        """The declared shapes and dtypes that arguments must have (argument `input_signature` of `function`)."""
        return self._input_signature

    def traced_inputs(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Returns the argument lists for which this function has been traced, with shapes and dtypes for arrays.

        If it was run on replicas, these are the arguments of one replica.
        """
        found = [arguments.rebuilt(arguments.arrays) for arguments in self._arguments]
        for made in self._by_strategy.values():
            runs = (arguments.of_one_replica() for arguments in made._arguments)
            found += [one for one in runs if one not in found]
        return found

    def around(
        self, strategy: Strategy, make: Callable[[Callable[..., Any]], Callable[..., Any]], key: Hashable = None
    ) -> Function:
        """Returns a compiled function that runs this function on a strategy's replicas.

        Args:
            strategy: The strategy of the run.
            make: A function from the Python function to one that runs it on the strategy's replicas.
            key: Everything else that the run depends on. Calls with equal strategy and key return the same function.
        """
        made = self._by_strategy.get((strategy, key))
        if made is None:
            made = Function(
                make(self._with_converted_code),
                donate=self._donate,
                input_signature=self._input_signature,
                name=f"run({self._name})",
                conversion=self._conversion._replace(code=None),
            )
            made = self._by_strategy.setdefault((strategy, key), made)  # another thread may have made it meanwhile
        return made

    def __get__(self, instance: object, owner: type | None = None) -> Function:
        """Binds this function to an instance as a method; each instance has a compiled function of its own."""
        if instance is None:
            return self
        return self._by_instance.find(instance, lambda: self._bound(instance))

    def _bound(self, instance: object) -> Function:
        to_trace = bind(self._with_converted_code, instance)  # the conversion is shared by all instances
        conversion = self._conversion._replace(code=lambda _: to_trace)
        made = self._again(bind(self.python_function, instance), conversion)
        made._method, made._decorated = (self, reference_to(instance)), self._decorated
        return made

    def _again(self, python_function: Callable[..., Any], conversion: Conversion) -> Function:
        return Function(
            python_function,
            donate=self._donate,
            input_signature=self._input_signature,
            name=self._name,
            steps_per_call=self.steps_per_call,
            conversion=conversion,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """Implements `copy.deepcopy`: binds a method to the copy of its instance, and copies a function's variables.

        A function that uses none of the copied objects is returned itself, as Python functions are.
        """
        if self._method is not None:
            function, reference = self._method
            instance = reference()
            return self if instance is None else function.__get__(copy.deepcopy(instance, memo))
        copied = with_copies(self.python_function, memo)
        if copied is self.python_function:
            return self
        if id(self) not in memo:  # the copied object may hold this function, and its copy then does already
            memo[id(self)] = self._again(copied, self._conversion)
        return memo[id(self)]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<function {self._name}, traced {self.trace_count} times>"
