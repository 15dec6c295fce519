"""Fuses the virtual replicas' copies of a loop or branch that contains collectives into one loop or branch.

The local replicas of a device are traced one after another. If each of them reduces something in a `scan`, the body
contains one `scan` per local replica, each with that replica's part of the collective
(`mirrored._jax.local_collectives`). Fusing replaces them by one `scan` over the carries of all local replicas, whose
body contains the whole collective. Equations at the same position in each replica's program are fused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.inlining import Staged, is_ordered, stage
from mirrored._jax.jaxprs import Branch, Call, Literal, Scan, While, constants_of, kinds_of
from mirrored._jax.local_collectives import (
    GATHER,
    SUM,
    at_source_of,
    bind_equation,
    local_replica_of,
    same_on_local_replicas,
)
from mirrored._jax.source_lines import source_line
from mirrored._typing import PyTree
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.errors import MergeError
from mirrored.strategies.padding import Calls, slot_of

if TYPE_CHECKING:
    from mirrored._jax.jaxprs import Jaxpr, JaxprEqn, Var
    from mirrored.strategies.tracing_runner import TracingRunner

_Values = list[Any]
_Walk = Generator[tuple[Any, _Values], _Values, _Values]
"""Evaluates one replica's jaxpr. Yields each equation that contains a collective, and receives its results."""


# Calls of functions with custom derivative rules, by the names of their primitives.
_WITH_RULES: Final = ("custom_jvp_call", "custom_vjp_call", "custom_linear_solve")


def fuse(body: Staged, runner: TracingRunner, axes: Sequence[tuple[str, int]]) -> Staged:
    """Fuses, in a traced program, the virtual replicas' copies of each loop, branch or call that contains collectives.

    Raises:
        MergeError: The local replicas' programs do not contain the same collectives.
    """
    avals: list[Any] = [var.aval for var in body.jaxpr.invars]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return stage(lambda *inputs: _Body(runner).run(body.jaxpr, body.constants, inputs), shapes, axes=axes)


class _Body:
    def __init__(self, runner: TracingRunner) -> None:
        self._runner = runner
        self._count = runner.num_local

    def run(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> _Values:
        """Evaluates a jaxpr in dataflow order and returns its outputs.

        The ordered callbacks of each replica are evaluated in program order. Equations that correspond in all local
        replicas are evaluated as one.
        """
        self._calls = Calls(self._runner.group_info)
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))
        groups = self._groups(jaxpr)
        group_of = {id(eqn): group for group in groups for eqn in group}
        before = _ordered_before(jaxpr)
        pending: list[Any] = list(jaxpr.eqns)
        evaluated: set[int] = set()  # equations, by id; one that only prints has no results
        while pending:
            later: list[Any] = []
            for eqn in pending:
                group = group_of.get(id(eqn), (eqn,))
                if id(eqn) in evaluated:
                    continue  # evaluated with its group
                is_known = all(_is_known(known, atom) for one in group for atom in one.invars)
                if not (is_known and all(before[id(one)] in evaluated for one in group if id(one) in before)):
                    later.append(eqn)
                    continue
                operands = [[_read(known, atom) for atom in one.invars] for one in group]
                results = [bind_equation(eqn, operands[0])] if id(eqn) not in group_of else self._fused(group, operands)
                for one, values in zip(group, results, strict=True):
                    known.update(zip(one.outvars, values, strict=True))
                evaluated.update(map(id, group))
            if len(later) == len(pending):
                raise _unequal_calls_error(
                    later[0], "the reductions of different replicas depend on each other's results"
                )
            pending = later
        return [_read(known, atom) for atom in jaxpr.outvars]

    def _groups(self, jaxpr: Jaxpr) -> list[tuple[Any, ...]]:
        """Returns tuples of corresponding equations with collectives, one equation per local replica, in order."""
        by_replica: list[list[Any]] = [[] for _ in range(self._count)]
        for eqn in jaxpr.eqns:
            local = local_replica_of(eqn)
            if local is not None:
                by_replica[local].append(eqn)
        counts = {len(eqns) for eqns in by_replica}
        if len(counts) > 1:
            raise _unequal_calls_error(max(by_replica, key=len)[-1], "some replicas of a device do not have it")
        return list(zip(*by_replica, strict=True))

    def _fused(self, eqns: Sequence[Any], operands: list[_Values]) -> list[_Values]:
        """Evaluates corresponding equations of all local replicas as one, and returns each replica's results."""
        first = eqns[0]
        name = first.primitive.name
        differ = len({eqn.primitive for eqn in eqns}) > 1
        # A constant of one replica's loop, branch or call may be an operand of another replica's.
        if differ or (name in (SUM, GATHER) and len({len(eqn.invars) for eqn in eqns}) > 1):
            raise _unequal_calls_error(first, "the replicas of a device have different operations at its position")
        if name in (SUM, GATHER) and len({eqn.params["given"] for eqn in eqns}) > 1:
            raise _missing_value_error(first)
        with at_source_of(first):
            if name == SUM:
                return _transposed(self._runner.all_reduce(ReduceOp.SUM, _transposed(operands)))
            if name == GATHER:
                return _transposed(self._runner.stack_each(_transposed(operands)))
            kinds: list[Any] = kinds_of(eqns, None)
            match kinds[0]:
                case Call():
                    return self._call(first, [kind.jaxpr for kind in kinds], operands)
                case Scan():
                    return self._scan(eqns, kinds, operands)
                case While():
                    return self._while(kinds, operands)
                case Branch():
                    return self._branch(first, kinds, operands)
        raise _unequal_calls_error(first, f"collectives inside {name} cannot be fused")

    def _lockstep(self, jaxprs: Sequence[Any], inputs: Sequence[_Values]) -> list[_Values]:
        """Evaluates the local replicas' jaxprs side by side; fuses a collective when all replicas have reached it."""
        walks = [
            _walk(jaxpr, values, functools.partial(self._calls.bind, k))
            for k, (jaxpr, values) in enumerate(zip(jaxprs, inputs, strict=True))
        ]
        results: list[_Values | None] = [None] * self._count
        stops = [_advance(walk, None, results, k) for k, walk in enumerate(walks)]
        while any(stop is not None for stop in stops):
            waiting = [stop for stop in stops if stop is not None]
            if len(waiting) < self._count:
                raise _unequal_calls_error(waiting[0][0], "some replicas of a device do not have it")
            fused_results = self._fused([eqn for eqn, _ in waiting], [operands for _, operands in waiting])
            stops = [
                _advance(walk, fused, results, k)
                for k, (walk, fused) in enumerate(zip(walks, fused_results, strict=True))
            ]
        return [result for result in results if result is not None]

    def _call(self, eqn: JaxprEqn, jaxprs: Sequence[Any], operands: list[_Values]) -> list[_Values]:
        if self._runner.store.under_tape and eqn.primitive.name in _WITH_RULES:
            raise MergeError(
                "Strategy.run",
                found="a function with a derivative rule of its own (jax.custom_vjp, jax.custom_jvp or "
                "lax.custom_linear_solve) contains a collective, and a GradientTape around the run records it",
                rule="the replicas of a device share the collective, so the tape would not use the rule",
                remedy="open the tape in the replica function, or call the collective outside of the custom function",
            )
        function = functools.partial(self._lockstep, jaxprs)
        if "policy" in eqn.params and "prevent_cse" in eqn.params:
            function = jax.checkpoint(function, policy=eqn.params["policy"])  # type: ignore[assignment]
        return function(operands)

    def _scan(self, eqns: Sequence[Any], scans: Sequence[Scan], operands: list[_Values]) -> list[_Values]:
        params = eqns[0].params
        for name, differ in (("length", "scan over different lengths"), ("reverse", "scan in different directions")):
            if any(eqn.params[name] != params[name] for eqn in eqns):
                raise _unequal_calls_error(eqns[0], f"replicas of a device {differ}")
        # What one replica's loop carries may be a constant of another replica's.
        firsts = [scan.num_consts for scan in scans]
        counts = [scan.num_carries for scan in scans]
        parts = list(zip(operands, firsts, counts, strict=True))
        consts = [values[:first] for values, first, _ in parts]

        def scan_body(carries: PyTree, elements: PyTree) -> Any:
            inputs = [[*a, *b, *c] for a, b, c in zip(consts, carries, elements, strict=True)]
            results = self._lockstep([scan.jaxpr for scan in scans], inputs)
            carried = [result[:count] for result, count in zip(results, counts, strict=True)]
            return carried, [result[count:] for result, count in zip(results, counts, strict=True)]

        carries, stacked = lax.scan(
            scan_body,
            [values[first : first + count] for values, first, count in parts],
            [values[first + count :] for values, first, count in parts],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [[*a, *b] for a, b in zip(carries, stacked, strict=True)]

    def _while(self, loops: Sequence[While], operands: list[_Values]) -> list[_Values]:
        of_cond, of_body, carried = [], [], []
        for loop, values in zip(loops, operands, strict=True):
            first = loop.num_cond_consts + loop.num_body_consts
            of_cond.append(values[: loop.num_cond_consts])
            of_body.append(values[loop.num_cond_consts : first])
            carried.append(values[first:])

        def condition(carries: PyTree) -> Any:
            inputs = [[*consts, *carry] for consts, carry in zip(of_cond, carries, strict=True)]
            results = self._lockstep([loop.cond for loop in loops], inputs)
            return same_on_local_replicas([result[0] for result in results])

        def loop_body(carries: PyTree) -> Any:
            inputs = [[*consts, *carry] for consts, carry in zip(of_body, carries, strict=True)]
            return self._lockstep([loop.body for loop in loops], inputs)

        return list(lax.while_loop(condition, loop_body, carried))

    def _branch(self, eqn: JaxprEqn, kinds: Sequence[Branch], operands: list[_Values]) -> list[_Values]:
        if len({len(kind.branches) for kind in kinds}) > 1:
            raise _unequal_calls_error(eqn, "replicas of a device choose among different numbers of branches")
        index = same_on_local_replicas([values[0] for values in operands])
        branches = [
            functools.partial(self._lockstep, jaxprs) for jaxprs in zip(*(k.branches for k in kinds), strict=True)
        ]
        return list(lax.switch(index.astype(jnp.int32), branches, [values[1:] for values in operands]))


def _walk(jaxpr: Jaxpr, inputs: _Values, bind: Callable[[JaxprEqn, _Values], _Values]) -> _Walk:
    known = dict(zip(jaxpr.constvars, constants_of(jaxpr), strict=False))
    known.update(zip(jaxpr.invars, inputs, strict=True))
    for eqn in jaxpr.eqns:
        operands = [_read(known, atom) for atom in eqn.invars]
        results = bind(eqn, operands) if local_replica_of(eqn) is None else (yield eqn, operands)
        known.update(zip(eqn.outvars, results, strict=True))
    return [_read(known, atom) for atom in jaxpr.outvars]


def _advance(walk: _Walk, fused: Any, results: list[_Values | None], k: int) -> tuple[Any, _Values] | None:
    try:
        return walk.send(fused)
    except StopIteration as end:
        results[k] = end.value
        return None


def _read(known: dict[Any, Any], atom: Var | Literal) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]


def _ordered_before(jaxpr: Jaxpr) -> dict[int, int]:
    """Maps each ordered callback to the previous ordered callback of the same replica, both as ids of equations.

    Dataflow does not order callbacks. A loop that replicas share waits for all of them; without this order, a callback
    that comes after the loop, but does not depend on it, would be evaluated before one that does.
    """
    before, latest = {}, dict[int | None, int]()
    for eqn in filter(is_ordered, jaxpr.eqns):
        slot = slot_of(eqn)
        if slot in latest:
            before[id(eqn)] = latest[slot]
        latest[slot] = id(eqn)
    return before


def _is_known(known: dict[Any, Any], atom: Var | Literal) -> bool:
    return isinstance(atom, Literal) or atom in known


def _transposed(rows: Sequence[Sequence[Any]]) -> list[_Values]:
    return [list(column) for column in zip(*rows, strict=True)]


def _missing_value_error(eqn: JaxprEqn) -> MergeError:
    return MergeError(
        eqn.params["called"],
        found=f"in a loop, branch or transform ({source_line(eqn)}) replicas pass, or derive by, different values",
        rule="the replicas of a device are fused there, so a value must be None on all replicas or on none",
        remedy="pass zeros in place of None: jnp.zeros_like(variable); or reduce outside the loop",
    )


def _unequal_calls_error(eqn: JaxprEqn, why: str) -> MergeError:
    return MergeError(
        "Strategy.run",
        found=f"a reduction over replicas in {eqn.primitive.name} ({source_line(eqn)}): {why}",
        rule="every replica must make the same collective and merge_call calls, in the same order",
        remedy="do not call them in a Python branch that depends on the replica id; or reduce outside the loop",
    )
