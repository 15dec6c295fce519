"""`Optimizer`: wraps an optax transformation with TensorFlow's optimizer interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._typing import Operand, PyTree
from mirrored.errors import ArgumentError
from mirrored.optimizers import rules
from mirrored.optimizers.checks import Pair, check_gradients, check_strategy_of_state, warn_of_missing, with_gradients
from mirrored.optimizers.compiled_rule import CompiledRule
from mirrored.optimizers.gradient_merge import (
    PairsOf,
    as_pairs,
    as_they_are,
    as_variables,
    in_insertion_order,
    once,
    scope_of,
    updatable_variables,
    update_with_sums_of,
    variables_in_insertion_order,
)
from mirrored.optimizers.rules import Clipping, LearningRate, LearningRateLike, copied, not_copyable_error
from mirrored.optimizers.slots import Made, Slots, UpdateRule
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.entry_point import restoring
from mirrored.tape import GradientTape, unrecorded
from mirrored.variables import Variable, access
from mirrored.variables.state_lock import assignment_lock, together


class Optimizer:
    """An optimizer that updates variables with an optax transformation and has the methods of a TensorFlow optimizer.

    The optimizer's state (step counter, learning rate and optax state) is held in mirrored variables. They are created
    under the strategy that trains, by `build` or by the first update of the variables that they belong to. optax
    receives the parameters of a call as a dict from variable name to array, so masks by name work:
    ``optax.adamw(1e-3, mask=lambda p: {name: "bias" not in name for name in p})``.

    One optimizer can update several models, even in separate calls. Slots belong to variables. State that optax keeps
    once for the whole tree (a step counter) is shared by the variables of one group: those first passed in the same
    `build` or update call. Variables added later start at step 0, as in a separate optimizer. A transform that computes
    over all gradients (a global norm) computes over all gradients of the call. `iterations` counts calls.

    The transform is traced once for each set of variables, also in eager code. Python state that it reads is fixed
    then: a value that changes belongs in `learning_rate` or in the transform's state (`optax.inject_hyperparams`).

    Args:
        transform: An `optax.GradientTransformation`. With `learning_rate`, a function from a learning rate to a
            transform (`optax.adam`), so that the learning rate can change later.
        name: The optimizer's name, the first part of its variables' names. Default: ``optimizer``.
        learning_rate: A number, a `Variable`, or a function of the step (an optax schedule).
        clipnorm: Upper bound on the norm of each variable's gradient.
        global_clipnorm: Upper bound on the global norm of all gradients of a call.
        clipvalue: Upper bound on the absolute value of each element of a gradient.

    Raises:
        ArgumentError: The learning rate or a clipping bound is invalid, or `transform` is not a transform.

    Example:
        >>> import mirrored as mr, optax
        >>> v = mr.Variable(1.0)
        >>> optimizer = Optimizer(optax.sgd, learning_rate=0.1)
        >>> _ = optimizer.apply_gradients([(2.0, v)])
        >>> print(v.numpy(), optimizer.iterations.numpy())
        0.8 1

    TensorFlow: `tf.keras.optimizers.Optimizer`, with the same names and defaults. Clipping acts on the all-reduced
    gradient, whereas Keras clips each replica's gradient before the sum. Variables can be added at any time.
    """

    def __init__(
        self,
        transform: optax.GradientTransformation | optax.MultiSteps | Callable[..., optax.GradientTransformation],
        name: str | None = None,
        *,
        learning_rate: LearningRateLike | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
        clipvalue: float | None = None,
    ) -> None:
        if isinstance(transform, optax.MultiSteps):  # has `init` and `update`, but is not a transformation
            transform = transform.gradient_transformation()
        made = isinstance(transform, optax.GradientTransformation)
        if made is (learning_rate is not None) or not (made or callable(transform)):
            raise ArgumentError(
                "Optimizer",
                found=f"transform={transform!r} was passed with learning_rate={learning_rate!r}",
                rule="an optax transformation (optax.adam(1e-3)) already contains its learning rate; a factory such as "
                "optax.adam needs learning_rate=",
                remedy="write Optimizer(optax.adam(1e-3)), or Optimizer(optax.adam, learning_rate=1e-3)",
            )
        clipping = Clipping(clipnorm, global_clipnorm, clipvalue)
        fixed: Any = transform
        factory = (lambda _: fixed) if made else rules.with_rate(fixed)
        self._set_up(UpdateRule(factory, clipping), learning_rate, name or "optimizer", {})

    def _set_up(
        self, rule: UpdateRule, learning_rate: LearningRateLike | None, name: str, settings: Mapping[str, Any]
    ) -> None:
        """Sets all fields of the optimizer; called by the constructors of this class and of the named optimizers."""
        self._name = name
        self._rule = rule
        self._settings = dict(settings)
        self._rate = None if learning_rate is None else LearningRate(learning_rate, f"{name}/learning_rate")
        self._iterations: Variable | None = None
        self._slots = Slots(rule, name)
        self._warned: set[tuple[str, ...]] = set()
        self._compute = CompiledRule(rule)

    # State

    @property
    def name(self) -> str:
        """The optimizer's name: the prefix of the names of its state variables."""
        return self._name

    @property
    def iterations(self) -> Variable:
        """The ``i32[]`` variable that counts the updates applied so far; to resume at step ``n``, assign ``n``."""
        if self._iterations is None:
            once(self._build_scalars)
        assert self._iterations is not None
        return self._iterations

    @property
    def learning_rate(self) -> Any:
        """The learning rate: a variable, or the current value of a schedule.

        Set it at any time (``optimizer.learning_rate = 0.01``). A compiled step sees the change without retracing.

        Raises:
            ArgumentError: The transform contains its own learning rate; or a number is assigned in place of a schedule.
        """
        rate = self._learning_rate()
        if rate.is_schedule:
            return rate.at(self.iterations.read_value())
        if not rate.variables:
            once(self._build_scalars)
        return rate.variables[0]

    @learning_rate.setter
    def learning_rate(self, value: Operand) -> None:
        self._learning_rate().change(value)

    @property
    def variables(self) -> list[Variable]:
        """All state variables of the optimizer: iterations, learning rate, then slot variables in creation order."""
        rates = [] if self._rate is None else self._rate.variables
        return [self.iterations, *rates, *self._slots.variables]

    def slots(self, variable: Variable) -> dict[str, Variable]:
        """Returns the optimizer's state variables for one variable, by optax's names: ``{"mu": ..., "nu": ...}``."""
        return self._slots.of(variable)

    def made(self) -> Made:
        """Returns the state variables that exist so far, for checkpoints, without creating any."""
        scalars = {} if self._iterations is None else {"iterations": self._iterations}
        scalars.update(("learning_rate", rate) for rate in ([] if self._rate is None else self._rate.variables))
        return Made(scalars, self._slots.groups())

    def given_rate(self) -> LearningRate | None:
        """Returns the learning rate passed to the optimizer, for checkpoints; None if none was passed."""
        return self._rate

    def __repr__(self) -> str:
        rate = {} if self._rate is None else {"learning_rate": self._rate}
        shown = ", ".join(f"{key}={value!r}" for key, value in {**rate, **self._settings}.items())
        count = len(self._slots.seen)
        return f"<{type(self).__name__} {self._name!r} ({shown}) over {count} variable{'s' * (count != 1)}>"

    def __copy__(self) -> Optimizer:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        made: Optimizer = copied(self, memo)
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise not_copyable_error("pickle", self)

    # Updates

    def build(self, var_list: PyTree) -> None:
        """Creates the optimizer's state variables for given model variables now, instead of at their first update.

        They form one group, which shares a step counter.

        Context: cross-replica (in the scope), replica, or without a strategy. Calling `build` is optional.

        Args:
            var_list: The variables: a list, a dict, or a model given to `mirrored.mirror`. Variables that already have
                slots are skipped. `apply` then takes a list of gradients in this order, for a dict that of its keys.

        Raises:
            VariableError: An optimizer cannot update one of the variables.
        """
        variables = updatable_variables(var_list, f"{type(self).__name__}.build")
        with scope_of(variables):
            self._build(variables, lambda: in_insertion_order(var_list, variables))

    @restoring
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable:
        """Sums the gradients of all replicas and updates the variables with the sums.

        Context: any. In replica context the gradients are first summed over all replicas, in one reduction. A loss
        divided by the *global* batch size (`mirrored.losses.average_loss`) therefore gives the same step as one device
        on the whole batch. In cross-replica context per-replica gradients are also summed; plain arrays are used
        unchanged.

        Args:
            grads_and_vars: Pairs of a gradient and its variable. A variable whose gradient is None is not updated, and
                a warning names it. A pair can also hold a tree of gradients and a model given to `mirrored.mirror` (or
                a part of one): ``[(tape.gradient(loss, model), model)]``.
            name: Accepted for compatibility with TensorFlow; ignored.
            skip_gradients_aggregation: Whether the gradients are already summed (equal on all replicas).
            experimental_aggregate_gradients: TensorFlow's older argument: False means
                ``skip_gradients_aggregation=True``.
            extra_args: Arrays that the optax transform takes besides gradients. They are summed over replicas like
                gradients: ``{"value": loss}`` with a loss divided by the global batch size.

        Returns:
            `iterations`.

        Raises:
            ArgumentError: There is no gradient at all, or a variable occurs twice.
            StructureError: An element is not a pair, or a gradient does not fit its variable.
            ReplicaDivergenceError: Aggregation was skipped and the gradients differ between replicas.
        """
        called = f"{type(self).__name__}.apply_gradients"
        iterator = grads_and_vars if isinstance(grads_and_vars, Iterator) else None
        given = grads_and_vars if isinstance(grads_and_vars, list) else list(grads_and_vars)
        pairs = as_pairs(given, called)
        names = sorted(extra_args or {})
        values = [(extra_args or {})[name] for name in names]

        def update(summed: Sequence[Pair], extra: Sequence[Any]) -> None:
            variables = [variable for _, variable in summed]
            with assignment_lock():
                self._build(variables, lambda: variables_in_insertion_order(given, pairs))
                self._update(variables, [total for total, _ in summed], dict(zip(names, extra, strict=True)))

        # Unrecorded: an enclosing tape must not record the update, which is not part of the loss.
        with unrecorded(), scope_of([variable for _, variable in pairs]):
            present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
            check_gradients(present, called, in_replica=ambient().is_in_replica_context)
            if experimental_aggregate_gradients and not skip_gradients_aggregation:
                absent = update_with_sums_of(pairs, values, update, called, self, iterator)
            else:
                present, absent = with_gradients(pairs, called)
                arrays = as_they_are([*(gradient for gradient, _ in present), *values], called)
                variables = [variable for _, variable in present]
                update(list(zip(arrays[: len(present)], variables, strict=True)), arrays[len(present) :])
        if absent and absent not in self._warned:
            self._warned.add(absent)
            warn_of_missing(absent, called, stacklevel=2)
        return self.iterations

    def apply(
        self,
        grads: PyTree,
        trainable_variables: PyTree | None = None,
        **options: Any,
    ) -> Variable:
        """Applies a list or tree of gradients to variables, as in ``apply(tape.gradient(loss, model), model)``.

        Otherwise like `apply_gradients`.

        Args:
            grads: One gradient (or None) per variable.
            trainable_variables: The variables, or a model given to `mirrored.mirror`. Default: all variables that have
                slots, in the order in which they were added.
            **options: As in `apply_gradients`.

        Raises:
            ArgumentError: The lists have different lengths.
        """
        if trainable_variables is not None and not isinstance(trainable_variables, list | tuple):
            return self.apply_gradients([(grads, trainable_variables)], **options)
        gradients = list(grads)
        variables = self._slots.seen if trainable_variables is None else list(trainable_variables)
        if len(gradients) != len(variables):
            raise ArgumentError(
                f"{type(self).__name__}.apply",
                found=f"{len(gradients)} gradients were passed for {len(variables)} variables",
                rule="apply must get one gradient per variable",
                remedy="pass the variables that the gradients were computed for: apply(gradients, variables)",
            )
        return self.apply_gradients(zip(gradients, variables, strict=True), **options)

    def minimize(
        self,
        loss: Callable[[], PyTree] | PyTree,
        var_list: Callable[[], PyTree] | PyTree,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable:
        """Computes the gradients of a loss and updates the variables with them.

        Args:
            loss: A function without arguments that returns the loss, or a loss value together with the `tape` that
                recorded it.
            var_list: The variables, a model given to `mirrored.mirror`, or a function that returns either. The function
                is called after the loss.
            tape: The tape that recorded `loss`.
            name: Accepted for compatibility with TensorFlow; ignored.
            **options: As in `apply_gradients`.

        Raises:
            ArgumentError: `loss` is not a function and there is no tape, or it is a function and there is a tape.
        """
        if callable(loss) and tape is None:
            with GradientTape() as tape:
                loss = loss()
        if tape is None or callable(loss):
            raise ArgumentError(
                f"{type(self).__name__}.minimize",
                found=f"the loss is of type {type(loss).__name__}, {'with' if tape is not None else 'without'} a tape",
                rule="the loss must be a function without arguments, or a value with the tape that recorded it",
                remedy="write minimize(lambda: loss_of(batch), variables), or minimize(loss, variables, tape=tape)",
            )
        variables = as_variables(var_list)
        if variables and not isinstance(variables[0], Variable) and callable(var_list):
            var_list = var_list()
            variables = as_variables(var_list)
        gradients = tape.gradient(loss, variables)
        return self.apply_gradients(PairsOf(zip(gradients, variables, strict=True), var_list), **options)

    # Implementation

    def _learning_rate(self) -> LearningRate:
        if self._rate is None:
            raise ArgumentError(
                f"{type(self).__name__}.learning_rate",
                found="the optimizer was created from an optax transformation",
                rule="an optax transformation already contains its learning rate, which cannot be read or set",
                remedy="write Optimizer(optax.adam, learning_rate=1e-3), or use mirrored.optimizers.Adam",
            )
        return self._rate

    def _build_scalars(self) -> None:
        if self._iterations is None:
            zero = np.zeros((), np.int32)
            self._iterations = Variable(zero, trainable=False, name=f"{self._name}/iterations")
            self._iterations.internal = True
        if self._rate is not None:
            self._rate.build()

    def _build(self, variables: Sequence[Variable], order: Callable[[], Sequence[Variable]]) -> None:
        """Creates the optimizer state (counters, learning rate, slots) that does not exist yet for the given variables.

        `order` returns the variables in the order in which `apply` takes their gradients.

        All replicas of a run see the same state here. So either all of them enter the merge in `once` or none does.
        """
        if self._iterations is not None and not self._slots.missing(variables):
            return
        ordered = order()  # here: `make`, as all replicas call it together, must not close over a replica's gradients

        def make() -> None:
            self._build_scalars()
            # Without listeners: tapes must not see the reads that initialize the slots.
            with within(listeners=()):
                self._slots.build(variables, lambda: self._rate_at(self.iterations.read_value()), ordered)

        once(make)

    def _rate_at(self, step: jax.Array) -> jax.Array | None:
        return None if self._rate is None else self._rate.at(step)

    def _update(self, variables: Sequence[Variable], gradients: Sequence[Any], extra: Mapping[str, Any]) -> None:
        plan = self._slots.plan(variables)
        slots = self._slots.select(plan)
        check_strategy_of_state([self.iterations, *slots])
        with within(listeners=()):
            step, *values = access.read_all([self.iterations, *variables, *slots])
            rate = self._rate_at(step)
        parameters, state = values[: len(variables)], values[len(variables) :]
        operands = rate, _descending(gradients), parameters, state, dict(extra)
        new, new_state = self._compute(plan, operands, bit_identical=variables[0].is_deterministic)
        new = [
            value if one.constraint is None else one.constraint(value)
            for one, value in zip(variables, new, strict=True)
        ]
        targets, values = [*variables, *slots, self.iterations], [*new, *new_state, step + 1]
        together(lambda: access.assign_all(targets, values, aggregates=False))


def _descending(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients as optax expects them: complex ones are conjugated.

    JAX's gradient of a real loss with respect to z = x + iy is dL/dx - i dL/dy. The loss increases fastest along its
    conjugate. optax leaves the conjugation to its caller (https://docs.jax.dev, "Complex numbers and
    differentiation").
    """
    return [jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient for gradient in gradients]
