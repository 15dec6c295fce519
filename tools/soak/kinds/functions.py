"""Programs about what compiled functions can retain: strategies, options, buffers, iterators."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from soak import models
from soak.kinds import text
from soak.program import Program

VARIANTS: Final = (
    "recreated",
    "options",
    "zeros",
    "buffers",
    "iterator_argument",
    "iterator_captured",
    "iterator_get_next",
    "plain_iterator_argument",
    "plain_iterator_captured",
)
_RECREATED: Final = """
import gc

@mr.function
def total(x):
    strategy = mr.get_strategy()
    return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(x,)), axis=None)

def program():
    results = []
    for replicas in {counts}:
        strategy = make_strategy({devices} if replicas % {devices} == 0 else 1, replicas)
        with strategy.scope():
            results.append(float(total(X)))
        del strategy
        gc.collect()  # as in a long program: a new strategy may get the address of a deleted one
    return {{"results": results}}
"""
_OPTIONS: Final = """
class Options:
    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):  # so it has no hash
        return isinstance(other, Options) and self.factor == other.factor

@mr.function
def scaled(x, options):
    return x.sum() * options.factor

def program():
    options, results = Options(1.0), []
    for factor in {factors}:
        options.factor = factor
        results.append(float(scaled(X, options)))
    return {{"results": results}}
"""
_ZEROS: Final = """
import math

@mr.function
def signed(x, number):
    sign = math.copysign(1.0, number)
    return x.sum() * sign if number == number else x.sum() * 3.0

def program():
    results = [float(signed(X, number)) for number in {numbers}]
    assert signed.trace_count <= 3, f"{{signed.trace_count}} traces for three numbers"
    return {{"results": results}}
"""
_BUFFERS: Final = """
def program():
    strategy = make_strategy({devices}, {replicas})
    buffer = np.zeros({size}, np.float32)
    with strategy.scope():
        made, assigned, added = (mr.Variable(one) for one in (buffer, np.ones_like(buffer), np.ones_like(buffer)))

    def step(x):
        return strategy.reduce("SUM", strategy.run(lambda x: x.sum() * 1.0, args=(x,)), axis=None)

    step = mr.function(step) if {compiled} else step
    results = []
    for number in {fills}:
        buffer[...] = number
        assigned.assign(buffer)
        added.assign_add(buffer)
        results.append(step(buffer))
        buffer[...] = -1e6
        results.append(np.array(assigned.numpy()).sum())
    results += [np.array(made.numpy()).sum(), np.array(added.numpy()).sum()]
    return {{"results": [float(one) for one in results]}}
"""
_ITERATOR: Final = """
import mirrored.tf as tf

def program():
    iterator = {iterator}
    {function}
    results = []
    try:
        for _ in range(len(X) + 2):
            results.append(float(step({argument})))
    except (StopIteration, IndexError):
        results.append(None)
    except Exception as error:  # TensorFlow's own class for the end
        if "end" not in str(error).lower():
            raise
        results.append(None)
    return {{"results": results}}
"""
_ITERATES: Final = {
    "iterator_argument": ("step = {function}(lambda it: next(it) * 2.0)", "iterator"),
    "iterator_captured": ("step = {function}(lambda: next(iterator) * 2.0)", ""),
    "iterator_get_next": ("step = {function}(lambda it: it.get_next() * 2.0)", "iterator"),
}
_DATASET_ITERATOR: Final = "iter(tf.data.Dataset.from_tensor_slices(X[:, 0]))"
# Iterators that users pass instead. A compiled function must take another element at every call, or raise an error.
_PLAIN_ITERATORS: Final = (
    "iter(X[:, 0].tolist())",
    "iter(X[:, 0])",
    "(row for row in X[:, 0])",
    "map(float, X[:, 0])",
    "tf.data.Dataset.from_tensor_slices(X[:, 0]).as_numpy_iterator()",
)


def body(program: Program) -> str:
    """Returns the text of one variant."""
    if program.variant == "recreated":
        main = _RECREATED.format(counts=_counts(program), devices=program.devices)
    elif program.variant == "options":
        main = _OPTIONS.format(factors=_factors(program))
    elif program.variant == "zeros":
        main = _ZEROS.format(numbers=_numbers(program).replace("nan", 'float("nan")'))
    elif program.variant == "buffers":
        main = _BUFFERS.format(
            devices=program.devices,
            replicas=program.replicas,
            size=1 + program.seed % 4096,
            compiled=program.way != "eager",
            fills=_fills(program),
        )
    else:
        plain = program.variant.startswith("plain_")
        function, argument = _ITERATES[program.variant.removeprefix("plain_")]
        iterator = _PLAIN_ITERATORS[_rng(program).integers(len(_PLAIN_ITERATORS))] if plain else _DATASET_ITERATOR
        facade = "mr.function" if program.way == "inner" else "tf.function"
        main = _ITERATOR.format(iterator=iterator, function=function.format(function=facade), argument=argument)
    return text.header(program, main)


def _rng(program: Program) -> np.random.Generator:
    return np.random.default_rng(program.seed + 2)


def _counts(program: Program) -> list[int]:
    return [int(one) for one in _rng(program).choice([1, 2, 4], size=12)]


def _factors(program: Program) -> list[float]:
    return [float(one) for one in _rng(program).integers(1, 4, size=4)]


def _numbers(program: Program) -> str:
    return "[" + ", ".join(_rng(program).choice(["0.0", "-0.0", "nan"], size=6)) + "]"


def _fills(program: Program) -> list[float]:
    return [float(one) for one in _rng(program).integers(1, 9, size=3)]


def expected(program: Program, record: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of the same Python without a compiler."""
    x = models.data(program.seed, program.examples)[0]
    total = float(x.sum(dtype=np.float64))
    if program.variant == "recreated":
        return {"results": [total * count for count in _counts(program)]}
    if program.variant == "options":
        return {"results": [total * factor for factor in _factors(program)]}
    if program.variant == "zeros":
        numbers = [float(one) for one in _numbers(program)[1:-1].split(", ")]
        return {"results": [total * (3.0 if math.isnan(one) else math.copysign(1.0, one)) for one in numbers]}
    if program.variant == "buffers":
        size, fills = 1 + program.seed % 4096, _fills(program)
        steps = [one for fill in fills for one in (fill * size * program.replicas, fill * size)]
        return {"results": [*steps, 0.0, (1 + sum(fills)) * size]}
    return {"results": [float(row) * 2 for row in x[:, 0]] + [None]}


def refusals(program: Program) -> tuple[str, ...]:
    """Returns the allowed errors: an iterator or a mutable option in a compiled function may raise."""
    if "iterator" in program.variant:
        return ("iterator", "next(")
    return ("hash", "mutable") if program.variant == "options" else ()
