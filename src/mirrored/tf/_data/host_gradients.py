"""Gradients of `tf.py_function` in compiled code.

The forward pass calls the Python function under a tape and keeps the tape on the host; the backward pass takes it from
there by its number. So a gradient belongs to the operations of that very call, for instance to its random numbers, and
the function is not called a second time. TensorFlow's `EagerPyFunc` does the same.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from mirrored.tape import GradientTape
from mirrored.tf._errors import InvalidArgumentError

_CALLED: Final = "tf.py_function"
_MAX_KEPT: Final = 10_000  # tapes; a program that never takes the gradients would keep all of them
_NUMBER: Final = jax.ShapeDtypeStruct((), np.int32)

_Shaped: TypeAlias = jax.ShapeDtypeStruct
_Kept: TypeAlias = tuple[GradientTape, list[Any], list[Any]]  # a tape, its sources, its targets


class _Tapes:
    """The tapes of calls whose gradient has not been taken yet, by number; the oldest are dropped."""

    def __init__(self) -> None:
        self._lock, self._numbers, self._kept = threading.Lock(), itertools.count(), OrderedDict[int, _Kept]()

    def put(self, kept: _Kept) -> int:
        with self._lock:
            number = next(self._numbers) % 2**31
            self._kept[number] = kept
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return number

    def take(self, number: int, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.pop(number, None)
        if kept is None:
            raise InvalidArgumentError.of(
                _CALLED,
                found=f"the gradient of a call of {name} that is not recorded any more",
                rule=f"a gradient is taken once, and of one of the last {_MAX_KEPT} calls",
                remedy="take the gradient once in each step; in loops with more calls, call tf.py_function for a batch",
            )
        return kept


_tapes: Final = _Tapes()


def differentiable_call(
    function: Callable[..., list[Any]], operands: Sequence[_Shaped], shapes: Sequence[_Shaped], name: str
) -> Callable[..., list[Any]]:
    """Returns a function of tensors that calls a Python function on the host and that JAX can differentiate.

    Args:
        function: Takes and returns arrays; runs on the host, eagerly.
        operands: Shapes and dtypes of its arguments.
        shapes: Shapes and dtypes of its results.
        name: The name of the user's function, for errors.
    """

    def host(*arrays: Any) -> list[Any]:
        return [np.asarray(one) for one in function(*arrays)]

    def recording(*arrays: Any) -> list[Any]:
        sources = [jnp.asarray(one) for one in arrays]
        with GradientTape() as tape:
            tape.watch([one for one in sources if _is_differentiable(one)])
            targets = function(*sources)
        number = _tapes.put((tape, sources, targets))
        return [np.int32(number), *map(np.asarray, targets)]

    def replaying(number: Any, *cotangents: Any) -> list[Any]:
        tape, sources, targets = _tapes.take(int(number), name)
        gradients = tape.gradient(
            [one for one in targets if _is_differentiable(one)],
            [one for one in sources if _is_differentiable(one)],
            output_gradients=[jnp.asarray(one) for one in cotangents],
            unconnected_gradients="zero",
        )
        return [np.asarray(one) for one in gradients]

    @jax.custom_vjp
    def call(*tensors: Any) -> list[Any]:
        return list(io_callback(host, shapes, *tensors))

    def forward(*tensors: Any) -> tuple[list[Any], jax.Array]:
        number, *results = io_callback(recording, (_NUMBER, *shapes), *tensors)
        return results, number

    def backward(number: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        wanted = [one for one in operands if _is_differentiable(one)]
        sent = [one for one, shape in zip(cotangents, shapes, strict=True) if _is_differentiable(shape)]
        gradients = iter(io_callback(replaying, wanted, number, *sent) if wanted and sent else ())
        return tuple(next(gradients, None) if _is_differentiable(one) else None for one in operands)

    call.defvjp(forward, backward)
    return call


def _is_differentiable(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
