"""Which strategy a Keras model belongs to: the one in whose scope it was made, wherever it is built and compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mirrored.errors import ContextError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.variables import StrategyVariable, adopt
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient

keras = load()


def connect_belonging() -> None:
    """Wraps the constructor of `keras.Model` and `compile`; copies of a model belong to its strategy."""
    replace("keras", keras.Model, "__init__", _noting_strategy(keras.Model.__init__))
    replace("keras", keras.Model, "__deepcopy__", _deep_copy)
    # Where it is defined: Keras takes a model whose class has another `compile` for one with a `compile` of its own.
    trainer = keras.src.trainers.trainer.Trainer
    replace("keras", trainer, "compile", _compiling_in_scope(trainer.compile))


def strategy_of(model: Any) -> Any:
    """The strategy that a model's variables belong to, None if they belong to none."""
    for variable in model.variables:
        if isinstance(variable, StrategyVariable) and variable.mirrored is not None:
            return variable.mirrored.strategy if variable.mirrored.device_assignment is not None else None
    return vars(model).get("_mirrored_strategy")


@contextmanager
def scope_of(model: Any) -> Iterator[None]:
    """The scope of the model's strategy, if it has one and none is open."""
    strategy, here = strategy_of(model), ambient()
    if strategy is None or here.strategies or here.replica is not None or here.store is not None:
        yield
        return
    with strategy.scope():
        yield


def check_belonging(model: Any, called: str) -> None:
    """Makes sure that a model, its optimizer and its metrics live on the same devices, before JAX says otherwise.

    Variables of an optimizer or metric that was made outside of any scope move onto the model's strategy.

    Raises:
        ContextError: A variable belongs to another strategy than the model, or the model to none.
    """
    strategy = strategy_of(model)
    optimizer = getattr(model, "optimizer", None)
    beside = [*(optimizer.variables if optimizer is not None else ()), *model.metrics_variables]
    if strategy is not None:
        _move(beside, strategy)
    for variable in [*model.variables, *beside]:
        theirs = _strategy_of_variable(variable)
        if theirs is not strategy and has_value(variable):
            raise _apart(called, variable, theirs, strategy)


def has_value(variable: Any) -> bool:
    """Whether Keras has given a variable its value yet."""
    return not isinstance(variable, StrategyVariable) or variable.mirrored is not None


def _strategy_of_variable(variable: Any) -> Any:
    made = variable.mirrored if isinstance(variable, StrategyVariable) else None
    return None if made is None or made.device_assignment is None else made.strategy


def _move(variables: Iterable[Any], strategy: Any) -> None:
    for variable in variables:
        if has_value(variable) and _strategy_of_variable(variable) is None:
            value = np.asarray(variable.value)
            with strategy.scope():
                adopt(variable)
                variable.__dict__.pop("_mirrored", None)
                variable._value = value


def _apart(called: str, variable: Any, theirs: Any, strategy: Any) -> ContextError:
    if strategy is None:
        return ContextError(
            called,
            found=f"the model was made outside of strategy.scope(), and its optimizer or metric has variable "
            f"{variable.path!r} of {theirs!r}",
            rule="a model and what trains it are made in the scope of one strategy",
            remedy="make the model inside `with strategy.scope():`, too",
        )
    found = "no strategy" if theirs is None else f"another strategy, {theirs!r}"
    return ContextError(
        called,
        found=f"variable {variable.path!r} belongs to {found}, and the model to {strategy!r}",
        rule="a model and what trains it are made in the scope of one strategy",
        remedy="make all of them inside `with strategy.scope():`",
    )


def _noting_strategy(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor: a model that is built later is built in the scope that it was made in."""

    @functools.wraps(make)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        strategies = ambient().strategies
        if strategies and strategies[-1].device_assignment is not None:
            vars(self)["_mirrored_strategy"] = strategies[-1]
            vars(self)["build"] = _in_scope(self, self.build)
        make(self, *args, **kwargs)

    return noting


def _deep_copy(model: Any, memo: dict[int, Any]) -> Any:
    """As Keras copies a model: saved and loaded, here in the scope of its strategy."""
    with scope_of(model):
        load_model, arguments = model.__reduce__()
        memo[id(model)] = made = load_model(*arguments)
    return made


def _in_scope(model: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def building(*args: Any, **kwargs: Any) -> Any:
        with scope_of(model):
            return build(*args, **kwargs)

    return building


def _compiling_in_scope(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    """`compile`, also outside of the scope: optimizers and metrics given by name are made in it."""

    @functools.wraps(compile_model)
    def compiling(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategies = ambient().strategies
        with scope_of(self):
            result = compile_model(self, *args, **kwargs)
        current = strategies[-1] if strategies and strategies[-1].device_assignment is not None else None
        own = strategy_of(self)
        if current is not None and own is not current and any(map(has_value, self.variables)):
            raise _elsewhere(self, own, current)
        return result

    return compiling


def _elsewhere(model: Any, own: Any, current: Any) -> ContextError:
    return ContextError(
        "keras.Model.compile",
        found=f"the model {model.name!r} was made "
        + ("outside of strategy.scope()" if own is None else f"in the scope of {own!r}")
        + f", and is compiled in the scope of {current!r}",
        rule="a model and what trains it are made in the scope of one strategy",
        remedy="make the model inside this scope, or compile it outside",
    )
