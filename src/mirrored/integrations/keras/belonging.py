"""Assigns each Keras model to the strategy in whose scope the model was created.

The model keeps that strategy wherever it is built and compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mirrored._blocks import contextmanager
from mirrored.checkpoint.deferred import is_expected, restore_created
from mirrored.errors import ContextError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import Trainer, layer_with
from mirrored.integrations.keras.variables import StrategyVariable, adopt
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient

if TYPE_CHECKING:
    from keras import Layer, Model
    from keras import Variable as KerasVariable

    from mirrored.strategies import Strategy

# Reports attributes that are set on a layer to pending checkpoint restores, which may hold their values.

keras = load()
_STRATEGY: Final = "_mirrored_strategy"  # an attribute of models and layers
_STATEFUL = (
    keras.Layer,
    keras.Variable,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    list,
    dict,
    tuple,
)


def connect_noticing() -> None:
    """Patches `Layer.__setattr__`, so that a checkpoint restore also applies to attributes that are set afterwards."""
    replace("keras", keras.Layer, "__setattr__", _reporting(keras.Layer.__setattr__))


def _reporting(set_attribute: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(set_attribute)
    def reporting(self: Layer, name: str, value: object) -> None:
        set_attribute(self, name, value)
        if is_expected() and isinstance(value, _STATEFUL) and not name.startswith("_"):
            restore_created(value)

    return reporting


def connect_belonging() -> None:
    """Patches `keras.Model` so that a model, or a copy of it, keeps the strategy in whose scope it was created.

    Wraps the constructor, `compile` and `__deepcopy__`, and `add_weight` of layers.
    """
    replace("keras", keras.Model, "__init__", _noting_strategy(keras.Model.__init__))
    replace("keras", keras.Model, "__deepcopy__", _deep_copy)
    # Patched on `Trainer`, which defines it: Keras treats a class whose `compile` differs from `Trainer`'s as custom.
    replace("keras", Trainer, "compile", _compiling_in_scope(Trainer.compile))
    replace("keras", keras.Layer, "add_weight", _adding_in_scope(keras.Layer.add_weight))


def strategy_of(model: Model | Layer) -> Any:
    """Returns the strategy to which a Keras model or layer belongs, or None."""
    for variable in model.variables:
        if isinstance(variable, StrategyVariable) and variable.mirrored is not None:
            if variable.mirrored.device_assignment is None:
                break  # created outside, as a layer's variables may be that a model of a strategy has
            return variable.mirrored.strategy
    return vars(model).get(_STRATEGY)


def is_made_in_scope(layer: Model | Layer) -> bool:
    """Returns whether a Keras model or layer was created in the scope of a strategy."""
    return _STRATEGY in vars(layer)


@contextmanager
def scope_of(model: Model | Layer) -> Iterator[None]:
    """Opens the scope of a Keras model's or layer's strategy; no effect without a strategy, or if a scope is open."""
    strategy, here = strategy_of(model), ambient()
    if strategy is None or here.strategies or here.replica is not None or here.store is not None:
        yield
        return
    with strategy.scope():
        yield


def check_belonging(model: Model, called: str) -> None:
    """Checks that a Keras model, its optimizer and its metrics belong to the same strategy.

    Variables of an optimizer or metric that was created outside every scope move to the model's strategy.

    Raises:
        ContextError: A variable belongs to a strategy, and the model belongs to another strategy or to none.
    """
    strategy = strategy_of(model)
    optimizer = getattr(model, "optimizer", None)
    beside = [*(optimizer.variables if optimizer is not None else ()), *model.metrics_variables]
    if strategy is not None:
        _move(beside, strategy)
    for variable in [*model.variables, *beside]:
        theirs = _strategy_of_variable(variable)
        if theirs is not strategy and has_value(variable):
            raise _mixed_strategies_error(called, model, variable, theirs, strategy)


def has_value(variable: KerasVariable) -> bool:
    """Returns whether Keras has initialized the value of a variable."""
    return not isinstance(variable, StrategyVariable) or variable.mirrored is not None


def _strategy_of_variable(variable: KerasVariable) -> Any:
    made = variable.mirrored if isinstance(variable, StrategyVariable) else None
    return None if made is None or made.device_assignment is None else made.strategy


def _move(variables: Iterable[Any], strategy: Strategy) -> None:
    for variable in variables:
        if has_value(variable) and _strategy_of_variable(variable) is None:
            value = np.asarray(variable.value)
            with strategy.scope():
                adopt(variable)
                if isinstance(variable, StrategyVariable):
                    variable.back(value)


def _mixed_strategies_error(
    called: str, model: Model, variable: KerasVariable, theirs: Strategy | None, strategy: Strategy | None
) -> ContextError:
    if strategy is None:
        return ContextError(
            called,
            found=f"the model was created outside strategy.scope(), and its optimizer or metric has variable "
            f"{variable.path!r} of {theirs!r}",
            rule="a model, its optimizer and its metrics must be created in the scope of one strategy",
            remedy="create the model inside `with strategy.scope():` too",
        )
    found = "was created outside strategy.scope()" if theirs is None else f"belongs to another strategy, {theirs!r}"
    layer = layer_with(model, variable)
    remedy = "create all of them inside `with strategy.scope():`"
    if layer is not None:
        remedy = (
            f"create layer {layer.name!r} inside `with strategy.scope():` too, and call there what creates its "
            "variables, such as adapt or build"
        )
    return ContextError(
        called,
        found=f"variable {variable.path!r} {found}, and the model belongs to {strategy!r}",
        rule="a model, its layers, its optimizer and its metrics must be created in the scope of one strategy",
        remedy=remedy,
    )


def _noting_strategy(make: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of models to record the current strategy, in whose scope a later `build` runs."""

    @functools.wraps(make)
    def noting(self: Model, *args: Any, **kwargs: Any) -> None:
        strategies = ambient().strategies
        if strategies and strategies[-1].device_assignment is not None:
            vars(self)[_STRATEGY] = strategies[-1]
            vars(self)["build"] = _in_scope(self, self.build)
        make(self, *args, **kwargs)

    return noting


def _adding_in_scope(add_weight: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Layer.add_weight` so that weights added outside the scope, as by `enable_lora`, join the layer's strategy.

    `quantize` deletes the weights before it adds others, so the layer notes the strategy.
    """

    @functools.wraps(add_weight)
    def adding(self: Layer, *args: Any, **kwargs: Any) -> Any:
        strategies = ambient().strategies
        if strategies and strategies[-1].device_assignment is not None:
            vars(self).setdefault(_STRATEGY, strategies[-1])
        if _STRATEGY not in vars(self):
            return add_weight(self, *args, **kwargs)
        with scope_of(self):
            return add_weight(self, *args, **kwargs)

    return adding


def _deep_copy(model: Model, memo: dict[int, Any]) -> Any:
    """Copies a model in the scope of its strategy, by serialization as Keras does."""
    with scope_of(model):
        load_model, arguments = model.__reduce__()
        memo[id(model)] = made = load_model(*arguments)
    return made


def _in_scope(model: Model, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def building(*args: Any, **kwargs: Any) -> Any:
        with scope_of(model):
            return build(*args, **kwargs)

    return building


def _compiling_in_scope(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `compile` to open the scope of the model's strategy while optimizers and metrics are created by name."""

    @functools.wraps(compile_model)
    def compiling(self: Model, *args: Any, **kwargs: Any) -> Any:
        strategies = ambient().strategies
        with scope_of(self):
            result = compile_model(self, *args, **kwargs)
        current = strategies[-1] if strategies and strategies[-1].device_assignment is not None else None
        own = strategy_of(self)
        if current is not None and own is not current and any(map(has_value, self.variables)):
            raise _other_scope_error(self, own, current)
        return result

    return compiling


def _other_scope_error(model: Model, own: Strategy | None, current: Strategy | None) -> ContextError:
    return ContextError(
        "keras.Model.compile",
        found=f"the model {model.name!r} was created "
        + ("outside strategy.scope()" if own is None else f"in the scope of {own!r}")
        + f", and is compiled in the scope of {current!r}",
        rule="a model, its optimizer and its metrics must be created in the scope of one strategy",
        remedy="create the model inside this scope, or compile it outside",
    )
