"""Combines gradients from several tapes, and accumulates gradients over micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._jax.promotion import at_least_float32
from mirrored._jax.trees import flatten_with_path, in_order_of, positions_in_order, tree_flatten
from mirrored._typing import DTypeLike, Operand, PyTree
from mirrored.collectives.reduce_op import ReduceOp, as_reduce_op
from mirrored.collectives.summation import narrow, widen
from mirrored.errors import ArgumentError, ArgumentTypeError, ContextError, StructureError
from mirrored.optimizers import Optimizer
from mirrored.optimizers.gradient_merge import PairsOf, scope_of, update_with_sums
from mirrored.runtime.ambient import ambient
from mirrored.runtime.rollback import with_rollback
from mirrored.strategies import get_replica_context, has_strategy
from mirrored.strategies.context import all_reduce_for
from mirrored.tape import unrecorded
from mirrored.values.sparse_rows import SparseRows
from mirrored.variables import Variable, VariableAggregation, VariableSynchronization
from mirrored.variables.state_lock import assignment_lock, together


def aggregate_gradients(gradients: Sequence[Any], op: ReduceOp | str | Callable[[Any], Any] = ReduceOp.SUM) -> Any:
    """Combines several tapes' gradients of the same variables into one gradient per variable.

    Context: any. The function does not reduce over replicas; the optimizer does.

    Args:
        gradients: One list (or other pytree) per tape, all with the same structure. None stands for a gradient of zero.
            A sparse gradient (`tf.IndexedSlices`) becomes dense.
        op: SUM, MEAN (over all tapes, including those with None), or a function from stacked gradients
            ``[tapes, ...]`` to one gradient ``[...]``.

    Returns:
        The combined gradients in the same structure, with None where every tape has None.

    Raises:
        ArgumentError: The list is empty.
        StructureError: The structures or shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> total = aggregate_gradients([[jnp.array(1.0), None, None], [jnp.array(2.0), jnp.array(3.0), None]])
        >>> [None if gradient is None else float(gradient) for gradient in total]
        [3.0, 3.0, None]

    TensorFlow: no equivalent; programs call `tf.add_n` once per variable.
    """
    structures: list[tuple[list[Any], Any]] = [
        tree_flatten(one, lambda leaf: leaf is None or isinstance(leaf, SparseRows)) for one in gradients
    ]
    if not structures:
        raise ArgumentError(
            "aggregate_gradients",
            found="the list is empty",
            rule="aggregation needs at least one list of gradients",
            remedy="write aggregate_gradients([tape_1.gradient(...), tape_2.gradient(...)])",
        )
    treedef = structures[0][1]
    for position, (_, other) in enumerate(structures):
        if other != treedef:
            raise StructureError(
                "aggregate_gradients",
                found=f"the gradients have the structure {treedef} at position 0 and {other} at position {position}",
                rule="all gradients must be for the same variables, in the same order",
                remedy="pass the same sources to every tape: tape.gradient(loss, variables)",
            )
    columns = zip(*(leaves for leaves, _ in structures), strict=True)
    combine = _combination(op)
    combined = treedef.unflatten([_combined(column, combine, position) for position, column in enumerate(columns)])
    return in_order_of(gradients[0], combined)


def _combination(op: ReduceOp | str | Callable[..., Any]) -> Callable[[list[Any]], Any]:
    reduce_op = as_reduce_op(op)
    if reduce_op == ReduceOp.SUM:
        return _total
    if reduce_op == ReduceOp.MEAN:
        return _mean
    return lambda arrays: reduce_op(jnp.stack(arrays))


def _total(arrays: list[Any]) -> Any:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _mean(arrays: list[Any]) -> Any:
    # The sum of 16-bit floats may overflow although their mean does not, so the sum is computed in float32.
    return narrow(_total(list(map(widen, arrays))) / len(arrays), jnp.result_type(*arrays))


def _combined(column: Sequence[Any], combine: Callable[[list[Any]], Any], position: int) -> Any:
    column = [_dense(gradient, "aggregate_gradients") for gradient in column]
    present = [as_array(gradient) for gradient in column if gradient is not None]
    if not present:
        return None
    shapes = {array.shape for array in present}
    if len(shapes) > 1:
        raise StructureError(
            "aggregate_gradients",
            found=f"shapes {', '.join(map(str, sorted(shapes)))} for gradient {position}",
            rule="the gradients of one variable must have its shape",
            remedy="pass the same sources to every tape: tape.gradient(loss, variables)",
        )
    like = present[0]
    return combine([jnp.zeros_like(like) if gradient is None else as_array(gradient) for gradient in column])


def _dense(gradient: Any, called: str) -> Any:
    """Converts sparse rows to a dense array; returns any other gradient unchanged."""
    if not isinstance(gradient, SparseRows):
        return gradient
    if gradient.dense_shape is None:
        raise ArgumentError(
            called,
            found="a sparse gradient has no dense_shape",
            rule="sparse gradients are made dense, which needs the shape of the variable",
            remedy="give it: tf.IndexedSlices(values, indices, dense_shape=variable.shape)",
        )
    return gradient.to_dense()


class GradientAccumulator:
    """Accumulates gradients over several micro-batches, and all-reduces the sum over replicas only once.

    The result is the gradient of the mean loss over all examples of all micro-batches and replicas. Micro-batches can
    differ in size: each gradient is weighted by its number of examples. The sums are kept per replica, in float32 or
    wider.

    Context: create it where the variables are created, in the strategy's scope.

    Args:
        variables: The variables whose gradients are accumulated: a list, or another pytree, such as a model given to
            `mirrored.mirror`, or a Flax NNX model that was created in the scope, or ``nnx.state(model, nnx.Param)``.
            Of the variables of a model only the trainable ones are used. A dict has the order of its keys.
        reduction: The loss that the gradients belong to: ``"mean"`` for the mean loss over a micro-batch on one
            replica, ``"sum"`` for the sum. Not ``average_loss``, which divides by the examples of all replicas: the
            accumulator divides once more. A compiled step warns of it (`LossScaleWarning`), if a micro-batch is not a
            part of an argument of `run`.
        name: The first part of the accumulator's variable names.

    Raises:
        ArgumentError: `reduction` is neither ``"mean"`` nor ``"sum"``.
        ArgumentTypeError: `variables` contains arrays that are not variables, or contains no trainable variable.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable(1.0)
        >>> accumulator = GradientAccumulator([v])
        >>> accumulator.add([2.0], count=3)
        >>> accumulator.add([6.0], count=1)
        >>> print(accumulator.result()[0])
        3.0

    TensorFlow: no equivalent. Keras' `gradient_accumulation_steps` all-reduces every micro-batch and weights all
    micro-batches equally.
    """

    def __init__(
        self,
        variables: PyTree,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        name: str = "gradient_accumulator",
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise ArgumentError(
                "GradientAccumulator",
                found=f"reduction={reduction!r}",
                rule="reduction says how each micro-batch's loss was reduced: 'mean' or 'sum'",
                remedy='write reduction="mean" or reduction="sum"',
            )
        # In the order of JAX, by which checkpoints name the sums; `_order` has their positions in that of the keys.
        self._paths, self._variables = _sources(variables)
        numbers = list(itertools.accumulate((used for _, used in self._paths), initial=0))
        self._order = tuple(numbers[at] for at in _positions(variables) if self._paths[at][1])
        self._reduction = reduction
        with scope_of(self._variables):
            self._sums = [_accumulator(v.component_shape, v.dtype, f"{name}/{v.name}") for v in self._variables]
            self._count = _accumulator((), jnp.float32, f"{name}/count")

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold the accumulated gradients and the number of examples, for checkpoints."""
        return [*self._sums, self._count]

    def add(self, gradients: PyTree, count: Operand) -> None:
        """Adds one micro-batch's gradients to the accumulated gradients, without a reduction over replicas.

        Context: replica context, or without a strategy.

        Args:
            gradients: One gradient per variable, in a list or in the structure of `variables`; None counts as zero. A
                list has the order of the variables, and for a dict that of its keys: ``list(gradients.values())``.
            count: The number of examples of the micro-batch on this replica (or the sum of their weights); can be 0.

        Raises:
            StructureError: The number or the shapes of the gradients do not match the variables, or `count` has axes.
            ContextError: The call is in a merge, as in the function of `merge_call`.
        """
        here = ambient()
        if here.runner is not None and here.replica is None:
            raise ContextError(
                "GradientAccumulator.add",
                found="it was called in cross-replica context, in a merge of the replicas",
                rule="each replica adds the gradients and the number of examples of its own micro-batch",
                remedy="call it in the function that is passed to run, outside of merge_call",
            )
        gradients = self._checked(gradients)
        count = jnp.asarray(count, jnp.float32)
        if count.shape:
            raise StructureError(
                "GradientAccumulator.add",
                found=f"the count has the shape {count.shape}",
                rule="the count of a micro-batch is one number: how many examples it has on this replica",
                remedy="pass x.shape[0], or the sum of the weights of the examples: jnp.sum(weights)",
            )
        if self._reduction == "mean" and here.runner is not None and here.replica.local_index == 0:
            rows = [[gradient] for gradient in gradients if gradient is not None]
            here.runner.note_summed("GradientAccumulator.add", rows, are_divided=True)

        def assign() -> None:
            for total, gradient in zip(self._sums, gradients, strict=True):
                if gradient is not None:
                    term = self._weighted(as_array(gradient).astype(total.dtype), count)
                    total.assign_add(term, read_value=False)
            self._count.assign_add(count, read_value=False)

        together(assign)

    def _weighted(self, gradient: jax.Array, count: jax.Array) -> jax.Array:
        """Multiplies the gradient of a mean loss by the number of examples; returns the gradient of a sum unchanged."""
        if self._reduction != "mean":
            return gradient
        return jnp.where(count == 0, jnp.zeros_like(gradient), gradient * count.astype(gradient.dtype))

    def result(self) -> list[jax.Array]:
        """Returns the gradients of the mean loss over all accumulated examples, computed with a single all-reduce.

        The list has the order of the variables, and for a dict that of its keys.

        Context: any. The result is equal on all replicas: apply it with ``skip_gradients_aggregation=True``.
        """
        sums = [total.read_value() for total in self.variables]
        context = get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            sums = all_reduce_for("GradientAccumulator.result", context, ReduceOp.SUM, sums)
        means = self._means(sums)
        return [means[at] for at in self._order]

    def apply(self, optimizer: Optimizer) -> None:
        """Updates the variables by applying the accumulated gradients with `optimizer`, and resets the accumulator.

        This takes one reduction over replicas in total.

        Context: any.

        Raises:
            ArgumentTypeError: `optimizer` is not an optimizer of `mirrored.optimizers`.
        """
        if not hasattr(optimizer, "apply_gradients"):
            raise ArgumentTypeError(
                "GradientAccumulator.apply",
                found=f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__qualname__}",
                rule="the accumulated gradients are summed over replicas already; only an optimizer of "
                "mirrored.optimizers can apply them without a second sum",
                remedy="pass mirrored.optimizers.Optimizer(transform), or accumulate with optax instead: "
                "nnx.Optimizer(model, optax.MultiSteps(transform, every_k_schedule=k), wrt=nnx.Param)",
            )

        def update(sums: Sequence[Any]) -> None:
            in_key_order = [self._variables[at] for at in self._order]
            pairs = PairsOf(zip(self._means(sums), self._variables, strict=True), in_key_order)
            optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

        def update_and_reset() -> None:
            sums = [total.read_value() for total in self.variables]
            update_with_sums(sums, update, "GradientAccumulator.apply", self, check_scale=False)
            self.reset()

        with unrecorded(), scope_of(self._variables):
            # A run stores its assignments atomically. Another `apply_gradients` than the library's may read what it has
            # assigned, and `together` would return the old values.
            is_own = getattr(optimizer.apply_gradients, "__func__", None) is Optimizer.apply_gradients
            if ambient().runner is not None:
                update_and_reset()
            elif is_own:
                together(update_and_reset)
            else:
                with assignment_lock():
                    with_rollback(update_and_reset)

    def reset(self) -> None:
        """Sets the accumulated gradients and the number of examples to zero."""

        def assign() -> None:
            for total in self.variables:
                total.assign(jnp.zeros(total.shape, total.dtype), read_value=False)

        together(assign)

    def _means(self, sums: Sequence[Any]) -> list[jax.Array]:
        count = jnp.where(sums[-1] == 0, 1, sums[-1])
        return [
            (total / count.astype(total.dtype)).astype(variable.dtype)
            for total, variable in zip(sums[:-1], self._variables, strict=True)
        ]

    def _checked(self, gradients: PyTree) -> list[Any]:
        """Returns one gradient or None per variable, after checking that structure and shapes match the variables."""
        found, leaves = _flattened(gradients)
        if found == [path for path, _ in self._paths]:
            leaves = [leaf for leaf, (_, used) in zip(leaves, self._paths, strict=True) if used]
        elif not isinstance(gradients, list | tuple):
            leaves = []  # another structure, which the error names
        elif len(leaves) == len(self._order):
            given = [leaves[at] for at in _positions(gradients)]
            leaves = [given[at] for at in np.argsort(self._order)]
        leaves = [_dense(leaf, "GradientAccumulator.add") for leaf in leaves]
        wanted = [total.component_shape for total in self._sums]
        shapes = [None if gradient is None else jnp.shape(gradient) for gradient in leaves]
        fits = len(shapes) == len(wanted) and all(a is None or a == b for a, b in zip(shapes, wanted, strict=True))
        if not fits:
            what = f"gradients of shapes {shapes}" if shapes else f"a {type(gradients).__name__} of another structure"
            raise StructureError(
                "GradientAccumulator.add",
                found=f"{what} for variables of shapes {wanted}",
                rule="there must be one gradient of the variable's shape, or None, per variable, in a list or in the "
                "structure given to GradientAccumulator",
                remedy="pass tape.gradient(loss, variables) with the variables given to GradientAccumulator",
            )
        return leaves


def _sources(tree: PyTree) -> tuple[list[tuple[str, bool]], list[Variable]]:
    """Returns, for each leaf, its path and whether it is a variable with a gradient; also returns these variables."""
    paths, leaves = _flattened(tree)
    is_model = not isinstance(tree, list | tuple)
    used = [isinstance(leaf, Variable) and (leaf.trainable or not is_model) for leaf in leaves]
    wrong = [leaf for leaf in leaves if not isinstance(leaf, Variable) and (not is_model or _is_parameter(leaf))]
    if wrong or not any(used):
        what = f"{len(wrong)} of {len(leaves)} leaves are not variables but {type(wrong[0]).__name__}" if wrong else ""
        raise ArgumentTypeError(
            "GradientAccumulator",
            found=f"a {type(tree).__name__} was passed: {what or 'it has no trainable variables'}",
            rule="the argument must be a list of variables, or a pytree or model whose parameters are variables",
            remedy="create an NNX model inside `with strategy.scope():`, or convert a model or pytree of arrays: "
            "mirrored.mirror(model); or accumulate with optax: nnx.Optimizer(model, optax.MultiSteps(transform, "
            "every_k_schedule=k), wrt=nnx.Param)",
        )
    return list(zip(paths, used, strict=True)), [leaf for leaf, one in zip(leaves, used, strict=True) if one]


def _flattened(tree: PyTree) -> tuple[list[str], list[Any]]:
    found = flatten_with_path(tree, _is_leaf)
    return [jax.tree_util.keystr(path) for path, _ in found[0]], [leaf for _, leaf in found[0]]


def _positions(tree: PyTree) -> tuple[int, ...]:
    return positions_in_order(tree, is_leaf=_is_leaf)


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, Variable | SparseRows)


def _is_parameter(leaf: object) -> bool:
    return bool(jnp.issubdtype(getattr(leaf, "dtype", None) or jnp.bool_, jnp.inexact))


def _accumulator(shape: tuple[int, ...], dtype: DTypeLike, name: str) -> Variable:
    zeros = jnp.zeros(shape, at_least_float32(dtype))
    if not has_strategy():
        return Variable(zeros, trainable=False, name=name)
    local, total = VariableSynchronization.ON_READ, VariableAggregation.SUM
    return Variable(zeros, trainable=False, name=name, synchronization=local, aggregation=total)
