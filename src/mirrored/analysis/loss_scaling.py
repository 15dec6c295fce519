"""Detects losses that are averaged over one replica's batch although the gradients are summed over replicas.

The derivative of such a loss starts with ``1 / b``, where b is the per-replica batch size; that of a part of the global
mean starts with ``1 / (b * replicas)``. Both are constants of the body's jaxpr: the literal 1 from which reverse-mode
differentiation starts, divided by numbers, broadcast to the shape of the batch, and combined with values that depend on
the batch. The analysis considers only such divisors. A number that is not derived from that 1 (the 0.5 in the
derivative of `maximum`) or that multiplies the loss (a coefficient, as in ``0.5 * jnp.sum(losses)``) does not indicate
a mean.

A weighted or masked mean divides by a sum over one replica's examples, such as ``jnp.sum(mask)``, which is not a
constant. The analysis follows sums that are computed from the arguments of one replica alone. A sum over all replicas
is the result of a collective, or is computed from the arguments of several replicas of one device.

The analysis interprets the body once, in order, and follows calls. Loops and branches are opaque to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence, Set
from itertools import chain, combinations
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored._jax.jaxprs import Call, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Plain, constants_of, kinds_of
from mirrored._jax.rounding import ROUND
from mirrored._jax.source_lines import source_line
from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.analysis.divisions import Divisions

_TOLERANCE: Final = 1e-4
_KEEPS_VALUE: Final = frozenset(
    {"broadcast_in_dim", "convert_element_type", "copy", "copy_p", "device_put", "expand_dims", "reshape", "squeeze"}
    | {"reduce_precision", ROUND, "slice", "split", "transpose", "unstack"}
)
_SUMS: Final = frozenset({"dot_general", "reduce_sum"})
_ADDS: Final = frozenset({"add", "add_any", "concatenate", "pad", "sub"})
# What a program does to a sum of weights before it divides by it. A square root makes a norm or a deviation of it.
_KEEPS_SUM: Final = _KEEPS_VALUE | {"abs", "add", "clamp", "div", "max", "min", "mul", "neg", "select_n"}
_SEPARATE: Final = frozenset({"optimization_barrier", "pvary"})  # each result is the operand at its position
_UNARY: Final[dict[str, Callable[[float], float]]] = {"neg": lambda x: -x, "abs": abs}
_BINARY: Final[dict[str, Callable[[float, float], float]]] = {
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "div": lambda x, y: x / y if y else math.inf,
    "mul": lambda x, y: x * y,
    "sub": lambda x, y: x - y,
}


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean that a traced replica function computes over the examples of a batch.

    Attributes:
        size: The batch size by which the mean divides.
        where: The line of user code, or None if it is unknown.
        weighted: Whether it divides by a sum over the batch, such as a sum of weights, instead of the batch size.
    """

    size: int
    where: str | None
    weighted: bool = False


@dataclasses.dataclass(frozen=True)
class _Value:
    """The facts that the loss-scaling analysis has derived about one variable of a jaxpr.

    Attributes:
        constant: The number that all elements equal. None if the elements differ or are unknown.
        divisor: The divisor by which the constant was derived from the initial 1 of the derivative, without
            coefficients. None if the constant is not derived from that 1.
        broadcast: The divisor when the constant was broadcast, and the shape of the result. If it was broadcast several
            times, the first shape that may be the batch counts, or else the last one. None if there was no broadcast.
        replicas: The local replicas on whose batch the value depends; a bit for each.
        data: Whether the value is computed from per-replica arguments and constants alone: not from variables, and not
            by collectives.
        sums: Whether every element is computed from sums over the examples of one replica's `data`.
        weighted: Whether such sums divide the 1 from which the value is derived.
        weights: Whether the value is `data` divided by such sums, as normalized weights are.
        means: The means over the batch whose derivatives the value contains.
        parts: The same, of parts of the mean over the batches of all replicas.
        rescaled: The divisions by the number of replicas of values that contained such a derivative; a bit for each.
        born: When the derivative that the value contains was begun: its place among the initial cotangents of the
            function. 0 if it contains none.
        divided: All divisions by the number of replicas of values on which this value depends; a bit for each.
    """

    constant: float | None = None
    divisor: float | None = None
    broadcast: tuple[float, tuple[int, ...]] | None = None
    replicas: int = 0
    data: bool = False
    sums: bool = False
    weighted: bool = False
    weights: bool = False
    means: frozenset[Mean] = frozenset()
    parts: frozenset[Mean] = frozenset()
    born: int = 0
    rescaled: int = 0
    divided: int = 0

    @property
    def depends(self) -> bool:
        """Whether the value depends on the per-replica batch."""
        return self.replicas > 0


_UNKNOWN: Final = _Value()


class LossScaling:
    """Detects whether the gradients of a replica function come from a loss averaged over the batch.

    A mean over n examples is detected by the factor 1/n in the gradients.

    Args:
        jaxpr: The jaxpr of the body.
        owners: For each constant and input of the body, the local replica whose argument it is, or None.
        constants: The values of the constants.
        num_replicas: The number of replicas.
        axis: The mesh axis of the devices.
    """

    def __init__(
        self,
        jaxpr: Jaxpr | ClosedJaxpr,
        owners: Sequence[int | None],
        constants: Sequence[Any],
        num_replicas: int,
        axis: str,
    ) -> None:
        variables = (*jaxpr.constvars, *jaxpr.invars)
        inputs = {var: owner for var, owner in zip(variables, owners, strict=True) if owner is not None}
        self._replicas = num_replicas
        self._axis = axis
        self._cotangents = 0
        self._sizes: set[int] = {_shape(var)[0] for var in inputs if _shape(var)} - {0, 1}
        self._divisions = Divisions(self._may_be_batch)
        self._known: dict[Any, _Value] = {var: _Value(replicas=1 << owner, data=True) for var, owner in inputs.items()}
        for var, constant in zip(jaxpr.constvars, constants, strict=False):
            self._known.setdefault(var, _constant(constant))
        if self._sizes:
            self._run(jaxpr, self._known, ())

    def means_in(self, gradients: Sequence[Any]) -> list[Mean]:
        """Returns the means over the per-replica batch that contribute to the given gradients.

        Returns none if one of the gradients was divided by the number of replicas afterwards.
        """
        values, shapes = self._values_of(gradients)
        if any(self._divisions.may_average(value.rescaled, shapes) for value in values):
            return []
        return sorted({mean for value in values for mean in value.means}, key=str)

    def global_means_in(self, gradients: Sequence[Any]) -> list[Mean]:
        """Returns the means over the global batch that contribute to the given gradients."""
        return sorted({part for value in self._values_of(gradients)[0] for part in value.parts}, key=str)

    def are_totals(self, gradients: Sequence[Any]) -> bool:
        """Returns whether gradients already have their final scale and must not be summed over replicas.

        The gradients are equal on all replicas. If they have the scale of the global batch, their sum over replicas is
        too large. It is right if they are a mean over replicas of gradients that are to be summed: they were divided by
        the number of replicas, and their loss is not a mean over the per-replica batch. Gradients that do not depend on
        the batch are equal on all replicas anyway: the result is False.
        """
        values, shapes = self._values_of(gradients)
        return bool(values) and all(value.depends and self._is_total(value, shapes) for value in values)

    def _is_total(self, value: _Value, shapes: Set[tuple[int, ...]]) -> bool:
        if value.means:
            return self._divisions.may_average(value.rescaled, shapes)
        return not self._divisions.may_average(value.divided, shapes)

    def _values_of(self, gradients: Sequence[Any]) -> tuple[list[_Value], Set[tuple[int, ...]]]:
        """Returns what the analysis knows about the scale of each gradient, and the set of their shapes."""
        atoms = [atom for atom in gradients if not isinstance(atom, Literal)]
        return [self._known.get(atom, _UNKNOWN) for atom in atoms], {tuple(atom.aval.shape) for atom in atoms}

    def _run(self, jaxpr: Jaxpr | ClosedJaxpr, known: dict[Any, _Value], calls: Sequence[JaxprEqn]) -> None:
        for eqn, kind in zip(jaxpr.eqns, kinds_of(jaxpr.eqns, self._axis), strict=True):
            if not eqn.outvars:  # `jax.debug.print` and other callbacks: nothing is computed from them
                continue
            operands = [
                _number(atom.val) if isinstance(atom, Literal) else known.get(atom, _UNKNOWN) for atom in eqn.invars
            ]
            if isinstance(kind, Call) and len(kind.jaxpr.invars) == len(operands):
                known.update(zip(eqn.outvars, self._call(kind.jaxpr, operands, (eqn, *calls)), strict=True))
                continue
            if eqn.primitive.name in _SEPARATE and len(eqn.outvars) == len(operands):
                known.update(zip(eqn.outvars, operands, strict=True))
                continue
            result = self._apply(eqn, operands, calls)
            if not isinstance(kind, Plain) or kind.jaxprs:
                result = dataclasses.replace(result, data=False, sums=False)
            known.update((var, result) for var in eqn.outvars)

    def _call(self, jaxpr: Jaxpr | ClosedJaxpr, operands: Sequence[_Value], calls: Sequence[JaxprEqn]) -> list[_Value]:
        known = dict(zip(jaxpr.invars, operands, strict=True))
        if jaxpr.constvars:
            known.update(zip(jaxpr.constvars, map(_constant, constants_of(jaxpr)), strict=False))
        self._run(jaxpr, known, calls)
        return [_number(atom.val) if isinstance(atom, Literal) else known.get(atom, _UNKNOWN) for atom in jaxpr.outvars]

    def _apply(self, eqn: JaxprEqn, operands: Sequence[_Value], calls: Sequence[JaxprEqn]) -> _Value:
        name, shape = eqn.primitive.name, _shape(eqn.outvars[0])
        constant = _computed(name, operands)
        if constant is not None:
            divisor = self._divisor(name, operands)
            broadcast = self._broadcast_of(name, operands, divisor, shape)
            self._cotangents += broadcast is not None
            born = _latest(operands) or (0 if broadcast is None else self._cotangents)
            return _Value(constant, divisor, broadcast, data=True, born=born)
        outer = operands if name in _ADDS else _outermost(operands)
        means = frozenset(chain.from_iterable(operand.means for operand in outer))
        replicas = rescaled = divided = 0
        for operand in operands:
            replicas |= operand.replicas
            rescaled, divided = rescaled | operand.rescaled, divided | operand.divided
        parts, born = frozenset(chain.from_iterable(operand.parts for operand in outer)), _latest(outer)
        if replicas:
            formed = self._means_used(eqn, operands, outer, calls)
            means, parts = means | formed[0], parts | formed[1]
        divides = self._divides(name, operands)
        if divides:
            bit = self._divisions.add(tuple(shape), divided, replicas > 0)
            divided |= bit
            if not self._divisions.is_derivative(bit) and any(operand.means for operand in operands):
                rescaled |= bit
        data = all(operand.data for operand in operands)
        return _Value(
            replicas=replicas,
            data=data,
            sums=data and replicas.bit_count() == 1 and self._is_sum(eqn, operands),
            weighted=not divides and self._is_weighted(name, operands),
            weights=data and _is_divided_by_sum(name, operands, lambda first: first.depends or first.weights),
            means=means,
            parts=parts,
            born=born,
            rescaled=rescaled,
            divided=divided,
        )

    def _is_sum(self, eqn: JaxprEqn, operands: Sequence[_Value]) -> bool:
        """Returns whether an operation's result is a sum over the examples, or is computed from such sums alone."""
        name = eqn.primitive.name
        if name in _SUMS:
            axes = eqn.params.get("axes", (0,))
            over_batch = 0 in axes or not _shape(eqn.outvars[0])
            return over_batch and any(
                operand.depends and self._may_be_batch((*_shape(atom), 1))
                for operand, atom in zip(operands, eqn.invars, strict=True)
            )
        cases = operands[1:] if name == "select_n" else operands
        changing = [operand for operand in cases if operand.depends]
        return name in _KEEPS_SUM and bool(changing) and all(operand.sums for operand in changing)

    def _is_weighted(self, name: str, operands: Sequence[_Value]) -> bool:
        """Returns whether an operation's result is 1 divided by a sum over one replica's examples.

        The 1 is the initial cotangent. Constant factors do not count. A divisor that contains the number of replicas is
        that of an average over replicas.
        """
        if _is_divided_by_sum(name, operands, lambda first: first.weighted or self._is_unscaled(first.divisor)):
            return True
        if name in ("mul", "div"):
            others = [operand for operand in operands if not operand.weighted]
            dividends = operands if name == "mul" else operands[:1]
            return all(operand.constant is not None for operand in others) and any(one.weighted for one in dividends)
        return (name in _KEEPS_VALUE or name in _UNARY) and operands[0].weighted

    def _is_unscaled(self, divisor: float | None) -> bool:
        return divisor is not None and (self._replicas == 1 or divisor % self._replicas > _TOLERANCE)

    def _broadcast_of(
        self, name: str, operands: Sequence[_Value], divisor: float | None, shape: tuple[int, ...]
    ) -> tuple[float, tuple[int, ...]] | None:
        earlier = next((operand.broadcast for operand in operands if operand.broadcast is not None), None)
        if name != "broadcast_in_dim" or not shape or (earlier is not None and self._may_be_batch(earlier[1])):
            return earlier
        return None if divisor is None else (divisor, shape)

    def _divisor(self, name: str, operands: Sequence[_Value]) -> float | None:
        """Returns the product of all divisors that turned the initial cotangent 1 into an operation's result.

        Coefficients do not count. Returns None if the result is not derived from that 1, or the divisor is unknown.
        """
        first, second = operands[0], operands[-1]
        if name == "div":
            return first.divisor * abs(second.constant) if first.divisor and second.constant else None
        if name == "mul":
            if first.divisor is None:
                first, second = second, first
            if first.divisor is None or second.constant is None:
                return None
            return first.divisor * (second.divisor or self._as_divisor(second.constant))
        if name in ("add", "add_any", "sub"):
            return first.divisor if second.divisor in (None, first.divisor) else None
        return first.divisor

    def _as_divisor(self, factor: float) -> float:
        """Returns the number n for which multiplication by `factor` is a division by n.

        A factor is a division if n is a multiple of the number of replicas. Otherwise it is a coefficient: n is 1.
        """
        inverse = 1 / abs(factor) if factor else 1.0
        multiple = round(inverse / self._replicas) * self._replicas
        return float(multiple) if multiple and _among(inverse, {float(multiple)}) else 1.0

    def _may_be_batch(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the first dimension of a shape may be the batch, alone or merged with another dimension."""
        return any(shape[0] % size == 0 for size in self._sizes)

    def _means_used(
        self, eqn: JaxprEqn, operands: Sequence[_Value], outer: Sequence[_Value], calls: Sequence[JaxprEqn]
    ) -> tuple[frozenset[Mean], frozenset[Mean]]:
        """Returns the per-replica means and the global means whose derivatives an equation uses, as two sets.

        Per-replica means are over one replica's batch, global means over the batches of all replicas together. The
        source line of a mean is that of the equation, or else that of the innermost call around it that has one.
        """
        means = {(size, False) for operand in outer for size in self._averaged_sizes(operand, 1, self._replicas)}
        parts = {(size, False) for operand in outer for size in self._averaged_sizes(operand, self._replicas, 1)}
        if self._replicas > 1 and self._differentiates_weighted_mean(eqn, operands):
            means.add((_shape(eqn.outvars[0])[0], True))
        if not means and not parts:
            return frozenset(), frozenset()
        where = next(filter(None, map(source_line, (eqn, *calls))), None)
        of_replica, of_all = ([Mean(size, where, weighted) for size, weighted in found] for found in (means, parts))
        return frozenset(of_replica), frozenset(of_all)

    def _differentiates_weighted_mean(self, eqn: JaxprEqn, operands: Sequence[_Value]) -> bool:
        """Returns whether an equation belongs to the derivative of a weighted mean over one replica's batch.

        Such an equation combines a derivative with the weights or examples of the mean.
        """
        if not _shape(eqn.outvars[0]) or not self._may_be_batch(_shape(eqn.outvars[0])):
            return False
        if any(operand.weighted for operand in operands):
            return any(operand.depends and not operand.weighted for operand in operands)
        derivatives = [
            operand.broadcast is not None and self._is_unscaled(operand.broadcast[0]) for operand in operands
        ]
        return any(derivatives) and any(operand.weights for operand in operands)

    def _averaged_sizes(self, operand: _Value, replicas: int, others: int) -> set[int]:
        """Returns the batch sizes n for which an operand's divisor contains the factor n * `replicas`.

        Sizes for which the divisor can be explained otherwise, such as by n * `others`, are left out. The divisor may
        have further factors: sizes of other dimensions, over which a mean may also be taken. A coefficient equal to the
        number of replicas undoes the division by that number.
        """
        if operand.broadcast is None:
            return set()
        divisor, shape = operand.broadcast
        if replicas > 1 and _among(abs(operand.constant or 0.0) * divisor, {float(replicas)}):
            return set()
        found = set()
        for size in self._sizes:
            if shape[0] % size:
                continue
            rest = [n for n in (shape[0] // size, *shape[1:]) if n > 1]
            products = {math.prod(some) for count in range(len(rest) + 1) for some in combinations(rest, count)}
            accepted = {float(n) for n in products} | {float(n * size * others) for n in products}
            suspicious: set[float] = {float(n * size * replicas) for n in products}
            if _among(divisor, suspicious) and not _among(divisor, accepted):
                found.add(size)
        return found

    def _divides(self, name: str, operands: Sequence[_Value]) -> bool:
        """Returns whether an operation divides a non-constant value by the number of replicas."""
        if name not in ("mul", "div") or len(operands) != 2:
            return False
        factor = operands[1].constant
        if name == "mul" and factor is None:
            factor = operands[0].constant
        if factor is None or not factor:
            return False
        return _among(abs(factor) if name == "div" else 1 / abs(factor), {float(self._replicas)})


def _latest(operands: Sequence[_Value]) -> int:
    return max((operand.born for operand in operands), default=0)


def _outermost(operands: Sequence[_Value]) -> Sequence[_Value]:
    """Returns the operands that contain the derivative which was begun last.

    A derivative is multiplied by a value that contains another one if the program differentiates a gradient, as in
    meta-learning. The derivative of the outer loss is begun after that of the inner loss, whose scale does not matter.
    """
    return [operand for operand in operands if operand.born == _latest(operands)]


def _is_divided_by_sum(name: str, operands: Sequence[_Value], is_dividend: Callable[[_Value], bool]) -> bool:
    return name == "div" and not operands[0].sums and operands[1].sums and is_dividend(operands[0])


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _computed(name: str, operands: Sequence[_Value]) -> float | None:
    """Returns the constant that an operation computes from constant operands; None if unknown."""
    numbers = [operand.constant for operand in operands]
    if not numbers or numbers[0] is None:
        return None
    if name in _KEEPS_VALUE:
        return numbers[0]
    if name in _UNARY:
        return _UNARY[name](numbers[0])
    if name in _BINARY and len(numbers) == 2 and numbers[1] is not None:
        return _BINARY[name](numbers[0], numbers[1])
    return None


def _among(number: float, candidates: set[float]) -> bool:
    return any(abs(number - candidate) <= _TOLERANCE * candidate for candidate in candidates)


def _number(value: Operand) -> _Value:
    if np.shape(value) or not _is_real(value):
        return _Value(data=True)
    number = float(value)  # During tracing, comparing an array would return a tracer.
    return _Value(number, 1.0 if number == 1 else None, data=True)


def _constant(value: Operand) -> _Value:
    return _UNKNOWN if isinstance(value, Tracer) else _number(value)


def _is_real(value: Operand) -> bool:
    dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
    return bool(jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))
