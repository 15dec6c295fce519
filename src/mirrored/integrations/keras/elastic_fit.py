"""The callback with which `keras.Model.fit` trains in an elastic job; restores and commits the state of `fit`.

`Session.fit_callback` makes it. The state of `fit` is that of the model (weights, optimizer, metrics, seeds), the
epoch, the step in it, the position in the training data, the history, and the plain data in the attributes of the other
callbacks. A step counts as committed after its `on_train_batch_end`; the last one of an epoch when the next epoch
begins, after the validation and the callbacks of its end.

When `fit` continues, Keras calls methods of the callbacks again whose effects are in the snapshot: `on_epoch_begin` of
the epoch, in which `LearningRateScheduler` changes the optimizer, or `on_train_end`. This callback is the last one, and
undoes what they have changed: it restores the model and the callbacks a second time.
"""

from __future__ import annotations

import base64
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import implementation_of, is_key, key_data
from mirrored.checkpoint import Checkpoint, Manifest
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.errors import ContextError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.fit_position import FitPosition, position
from mirrored.integrations.keras.private import initial_epoch, set_initial_epoch

keras = load()
_Callback: Any = keras.callbacks.Callback
_CALLED: Final = "Session.fit_callback"
_HISTORY: Final = "history"
_KERAS_OWN: Final = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
_ARRAY: Final = "__array_bytes__"
_FUNCTION: Final = "__function__"
_CONTAINER: Final = "__container__"
_LEAVES: Final = (bool, int, float, complex, str, bytes, type(None))
# When a snapshot was taken: before the first epoch, at the begin of an epoch, after a step, after the last epoch.
_TRAIN_BEGIN, _EPOCH_BEGIN, _BATCH_END, _TRAIN_END = "train begin", "epoch begin", "batch end", "train end"


class CommitsSteps(Protocol):
    """Protocol of the `Session` of an elastic job: takes and restores snapshots of the training state."""

    def resume(self, checkpoint: Checkpoint, otherwise: Callable[[], Any] | None = None) -> Any:
        """Restores the state of the newest snapshot, if there is one."""
        ...

    def commit(self) -> None:
        """Ends a training step, and takes a snapshot of the state if one is due."""
        ...


class FitCallback(_Callback):  # type: ignore[misc]
    """A Keras callback that lets `fit` resume from the newest snapshot when workers of an elastic job are lost or join.

    Args:
        session: The session of the training function.
    """

    def __init__(self, session: CommitsSteps) -> None:
        super().__init__()
        self._session = session
        self._place = _Place(self)
        self._again: Manifest | None = None  # what is to be restored a second time
        self._others: dict[str, Any] | None = None  # the attributes of the other callbacks
        self._has_unseen_end = False  # an epoch has ended, and no commit has followed

    @property
    def fit_model(self) -> Any:
        """The Keras model; unlike `model`, this property does not copy the training loop's state to the model first."""
        return self._model

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the state of `fit` from the newest snapshot, if there is one.

        Raises:
            ContextError: The model belongs to no strategy, or another callback follows this one.
        """
        here, model = self._checked_position(), self.fit_model
        self._place.begin(here)
        metrics = list(model.metrics)
        self._session.resume(Checkpoint(model=model, metrics=metrics, place=self._place))
        if self._place.is_restored:
            self._others = self._place.others
            self._restore_callbacks()
            set_initial_epoch(model, self.params["epochs"] if self._place.has_stopped else self._place.epoch)
            if self._place.steps or self._place.is_repeated:
                self._again = begin_snapshot(self._to_restore_again()).finish()

    def _to_restore_again(self) -> Checkpoint:
        """Returns a checkpoint of the objects that a resumed `fit` must restore a second time.

        After the first restore, `fit` resets the metrics when an epoch begins, and repeated callback methods can change
        the model.
        """
        model = self.fit_model
        metrics = list(model.metrics)
        return Checkpoint(model=model, metrics=metrics) if self._place.is_repeated else Checkpoint(metrics=metrics)

    def _restore_again(self) -> None:
        """Restores the state that a resumed `fit` has changed since `on_train_begin`."""
        again, self._again = self._again, None
        if again is not None:
            restore_snapshot(self._to_restore_again(), again)
        if self._others is not None:
            self._restore_history()
            if self._place.is_repeated:
                self._restore_callbacks()
            self._others = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits the training state if an epoch has ended since the last commit.

        When `fit` resumes, this method first restores the state that has changed since `on_train_begin`.
        """
        self._restore_again()
        if self._has_unseen_end:
            self._commit(_EPOCH_BEGIN)
        self._place.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits the training state after a step, unless the step may be the last one of the epoch.

        That includes a step after which a callback stops the training: it is repeated, and stopped again.
        """
        self._place.step(batch + 1)
        steps = self.params.get("steps")
        if steps is not None and batch + 1 < steps and not self.fit_model.stop_training:
            self._session.commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Records the position in the data at the end of the epoch."""
        self._place.end_epoch(epoch)
        self._has_unseen_end = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Commits the training state at the end of the last epoch."""
        self._restore_again()
        if self._has_unseen_end:
            self._commit(_TRAIN_END)

    def _commit(self, moment: str) -> None:
        self._has_unseen_end = False
        self._place.moment = moment
        self._session.commit()

    def _checked_position(self) -> FitPosition:
        here = position()
        if here is None or strategy_of(self.fit_model) is None:
            raise ContextError(
                _CALLED,
                found="the model belongs to no strategy",
                rule="an elastic job trains a model on all of its workers",
                remedy="create and compile the model in the scope of a MultiWorkerMirroredStrategy",
            )
        last = next((one for one in reversed(here.callbacks) if not isinstance(one, _KERAS_OWN)), self)
        if last is not self:
            raise ContextError(
                _CALLED,
                found=f"a {type(last).__name__} follows in the callbacks of fit",
                rule="it must be the last callback: a step is committed after the other callbacks have seen it",
                remedy="pass callbacks=[..., session.fit_callback()]",
            )
        return here

    def _restore_history(self) -> None:
        _update(self.fit_model.history, (self._others or {}).get(_HISTORY, {}))

    def _restore_callbacks(self) -> None:
        for name, callback in self.others():
            if name != _HISTORY:
                _update(callback, (self._others or {}).get(name, {}))

    def others(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, callback) pairs for Keras' `History` callback and the user's callbacks, except this one."""
        yield _HISTORY, self.fit_model.history
        here = position()
        for number, callback in enumerate([] if here is None else here.callbacks):
            if callback is not self and isinstance(callback, keras.callbacks.Callback):
                yield f"{number} {type(callback).__name__}", callback


class _Place:
    """The position of a `fit` call (epoch, step, position in the data), which a checkpoint can save."""

    def __init__(self, callback: FitCallback) -> None:
        self.epoch = self.steps = 0
        self.moment = _TRAIN_BEGIN
        self.is_restored = self.has_stopped = False
        self.others: dict[str, Any] = {}
        self._callback = callback
        self._data: Callable[[], Any] = lambda: None  # the position in the data; None at the beginning

    @property
    def is_repeated(self) -> bool:
        """Whether a resumed `fit` repeats a callback method whose effects the snapshot already contains."""
        return self.moment != _TRAIN_BEGIN

    def begin(self, here: FitPosition) -> None:
        """Stores the position at which `fit` begins, which a `BackupAndRestore` callback may have set."""
        self._here = here
        self.steps, data = here.restored
        self.epoch = initial_epoch(self._callback.fit_model)
        self._data = lambda: data

    def step(self, steps: int) -> None:
        """Records the number of completed steps of the epoch."""
        self.steps, self.moment = steps, _BATCH_END
        self._data = lambda: self._here.get_state(steps, is_shared=False)

    def end_epoch(self, epoch: int) -> None:
        """Records the position at the end of an epoch."""
        data = self._here.get_state(0, is_shared=False)
        self.epoch, self.steps, self._data = epoch + 1, 0, lambda: data

    def get_state(self) -> dict[str, Any]:
        """Returns the position in `fit` (epoch, step, data, callbacks) as a dict, from which `set_state` continues."""
        others = {name: _plain_attributes(callback) for name, callback in self._callback.others()}
        # What stops training in an epoch does so again; at its end, `fit` has stopped.
        stopped = self.moment == _TRAIN_END and bool(self._callback.fit_model.stop_training)
        place = {"epoch": self.epoch, "steps": self.steps, "moment": self.moment, "stopped": stopped}
        return {**place, "data": self._data(), "others": others}

    def set_state(self, state: dict[str, Any]) -> None:
        """Makes `fit` continue at a position that `get_state` returned."""
        data = state["data"]
        self.epoch, self.steps, self.others = state["epoch"], state["steps"], state["others"]
        self.moment = state["moment"]
        self.is_restored, self.has_stopped, self._data = True, state["stopped"], lambda: data
        if data is None:
            self._here.begin_anew()
        else:
            self._here.set_state(data, self.steps)


def _update(callback: Any, attributes: dict[str, Any]) -> None:
    vars(callback).update({name: _decoded(value) for name, value in attributes.items()})


def _plain_attributes(callback: Any) -> dict[str, Any]:
    """Returns the attributes of a callback that consist of numbers, strings, arrays, and containers of these.

    Functions of modules are plain, too: `EarlyStopping` changes `min_delta` when it sets `monitor_op`.
    """
    found = {}
    for name, value in vars(callback).items():
        if name not in ("_model", "params"):
            try:
                found[name] = _encoded(value)
            except TypeError:
                continue
    return found


def _encoded(value: Any) -> Any:
    """Converts numbers, strings, arrays and containers of them to data that a checkpoint can save.

    Raises:
        TypeError: The value contains something else.
    """
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _encoded_array(value)
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, types.FunctionType):
        path = {_FUNCTION: [value.__module__, value.__qualname__]}
        if _decoded(path) is value:
            return path
    if type(value) in (list, tuple):
        return type(value)([_encoded(one) for one in value])
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _encoded(one) for key, one in value.items()}
    if type(value) is dict:
        return {_CONTAINER: "dict", "items": [[_encoded(key), _encoded(one)] for key, one in value.items()]}
    if type(value) in (set, frozenset):
        return {_CONTAINER: type(value).__name__, "items": [_encoded(one) for one in value]}
    if type(value) is deque:
        return {_CONTAINER: "deque", "items": [_encoded(one) for one in value], "most": value.maxlen}
    raise TypeError


def _encoded_array(value: jax.Array | np.ndarray | np.generic) -> dict[str, Any]:
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        raise TypeError
    array = np.asarray(key_data(value))
    # Extension dtypes, such as bfloat16, have the kind "V", as have records.
    if array.dtype.kind not in "biufcUSMmV" or array.dtype.fields is not None:
        raise TypeError
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    key = implementation_of(value.dtype) if is_key(value) else None
    about = {"dtype": array.dtype.str if array.dtype.kind in "Mm" else str(array.dtype), "shape": list(array.shape)}
    return {_ARRAY: data, **about, "jax": isinstance(value, jax.Array), "key": key}


def _decoded(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_decoded(one) for one in value])
    if not isinstance(value, dict):
        return value
    if _FUNCTION in value:
        module, name = value[_FUNCTION]
        return getattr(sys.modules.get(module), name, None)
    if _ARRAY in value:
        return _decoded_array(value)
    if _CONTAINER in value:
        items = [_decoded(one) for one in value["items"]]
        if value[_CONTAINER] == "deque":
            return deque(items, value["most"])
        return {"dict": dict, "set": set, "frozenset": frozenset}[value[_CONTAINER]](items)
    return {key: _decoded(one) for key, one in value.items()}


def _decoded_array(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    array = np.frombuffer(bytearray(base64.b64decode(value[_ARRAY])), dtype).reshape(value["shape"])
    if value["key"] is not None:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=value["key"])
    if value["jax"]:
        return jnp.asarray(array)
    return array.copy() if array.shape else array[()]
