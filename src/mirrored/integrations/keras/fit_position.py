"""Records how far `keras.Model.fit` has read its training data, so that a resumed `fit` continues there.

Keras reads the data in passes: from the first batch to the last one. A pass is an epoch, unless `fit` is called with
``steps_per_epoch``; then an epoch continues the pass of the previous one. What determines the order of a pass depends
on the data:

- a `Dataset` or distributed dataset has a position, which includes its iteration and its seeds;
- Keras shuffles arrays with NumPy's global random state, and a `PyDataset` with Python's. Two states are
  saved: that before the pass, to read the batches before the backup again, and that at the backup, for later passes;
- other data, such as a generator, must have the same order by themselves; the batches are read again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from mirrored._jax import distributed
from mirrored._jax.source_lines import user_stacklevel
from mirrored.collectives.host_allgather import host_allgather
from mirrored.data.common_position import common_position
from mirrored.errors import ArgumentError, InputError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.loops import InProgress
from mirrored.integrations.keras.private import (
    ArrayDataAdapter,
    EpochIterator,
    PyDatasetAdapter,
    TorchDataLoaderAdapter,
    begin_pass,
    num_batches_seen,
    sampler_of,
    shuffles_arrays,
    steps_seen,
    validation_iterator,
)
from mirrored.integrations.keras.training import EndOfData, KerasBatches
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Model

keras = load()
_WORKERS: Final = "__workers__"


class _RandomState(Protocol):
    """Protocol for reading and setting the state of the global random generator with which Keras shuffles data."""

    def get(self) -> Any:
        """Returns the random state as JSON-like data; None if the kind of the generator is unknown."""
        ...

    def set(self, state: Any) -> None:
        """Restores a random state that `get` returned."""
        ...


class _OfNumPy:
    def get(self) -> Any:
        state: Any = np.random.get_state()
        if not isinstance(state, tuple):  # the program has replaced the bit generator
            return None
        kind, key, *rest = state
        return [kind, np.asarray(key).tolist(), *rest]

    def set(self, state: Any) -> None:
        kind, key, *rest = state
        np.random.set_state((kind, np.asarray(key, np.uint32), *rest))


class _OfPython:
    def get(self) -> Any:
        version, internal, gauss = random.getstate()
        return [version, list(internal), gauss]

    def set(self, state: Any) -> None:
        version, internal, gauss = state
        random.setstate((version, tuple(internal), gauss))


_NUMPY: Final = _OfNumPy()
_PYTHON: Final = _OfPython()


def _random_state(adapter: Any) -> _RandomState | None:
    """Returns the global random state with which this thread shuffles data for Keras; None if it shuffles no data."""
    if isinstance(adapter, ArrayDataAdapter):
        return _NUMPY if shuffles_arrays(adapter) else None
    if isinstance(adapter, PyDatasetAdapter) and adapter.shuffle and adapter.enqueuer is None:
        return None if adapter.num_batches is None else _PYTHON
    return None


def _has_unknown_order(adapter: Any) -> bool:
    """Returns whether the data is shuffled by a random state that is not saved."""
    if isinstance(adapter, PyDatasetAdapter):
        return bool(adapter.shuffle and adapter.enqueuer is not None and adapter.num_batches is not None)
    if isinstance(adapter, TorchDataLoaderAdapter):
        return type(sampler_of(adapter)).__name__ != "SequentialSampler"
    return False


@dataclasses.dataclass
class _Resumption:
    """Describes how a resumed `fit` begins: batches done, batches to read again, and random state.

    Attributes:
        first: The number of steps of the epoch before the backup.
        passed: The number of batches of the pass before the backup.
        to_read: The number of batches to read again; 0 if the position of the data was restored.
        random: The global random state from which Keras draws the order of the batches to read again, and the value
            that it gets afterwards: its value at the backup, or None to put back the value that it has before they are
            read. The latter is for a backup between two epochs: `set_state` has set the value at the backup already.
    """

    first: int
    passed: int
    to_read: int
    random: tuple[_RandomState, Any] | None = None


class FitPosition:
    """The position of one `keras.Model.fit` call in its training data: the batches read so far.

    It includes the number of passes over a dataset for validation, whose order and random numbers depend on it.

    Args:
        callbacks: The callbacks that the user has passed to `fit`.
        model: The model that `fit` trains.

    Attributes:
        callbacks: The same.
        restored: The steps and the state of the last `set_state`; (0, None) before.
    """

    def __init__(self, callbacks: Sequence[Any] = (), model: Model | None = None) -> None:
        self.callbacks, self._model = callbacks, model
        self.restored: tuple[int, dict[str, Any] | None] = (0, None)
        self._iterator: Any = None
        self._resumption: _Resumption | None = None
        self._validation: KerasBatches | None = None
        self._validated: Any = None  # a restored position, until the data for validation is known

    def note(self, iterator: EpochIterator) -> None:
        """Stores the iterators over the training data (the first one in `fit`) and over the data for validation."""
        if self._iterator is None:
            self._iterator = iterator
        elif self._model is not None and validation_iterator(self._model) is iterator:
            self._validation = _batches(iterator)
            validated, self._validated = self._validated, None
            training = _batches(self._iterator)
            # The position in the training data contains the passes over steps that both datasets have.
            is_apart = not _counting(training) & _counting(self._validation)
            if self._validation is not None and validated is not None and is_apart:
                with contextlib.suppress(InputError):  # other data, which may have fewer batches
                    _restored(self._validation, validated, 0)

    def get_state(self, steps: int, is_shared: bool) -> dict[str, Any] | None:
        """Returns how far `fit` has read its data, as JSON-like data that a backup stores.

        Args:
            steps: The number of steps of the epoch that are done; 0 at its end.
            is_shared: Whether several workers train the model together. All of them call this method then.
        """
        iterator = self._iterator
        if iterator is None:
            return None
        if iterator.steps_per_epoch:
            passed = steps_seen(iterator)
        else:
            passed = steps
        most = num_batches_seen(iterator)
        if most and passed >= most:
            passed = 0
        batches, source = _batches(iterator), _random_state(iterator.data_adapter)
        state = {"passed": passed}
        validated = self._validated if self._validation is None else self._validation.get_state()
        if validated is not None:
            state["validation"] = _of_all_workers(validated, is_shared and self._validation is not None)
        if batches is not None:
            return {**state, "dataset": _of_all_workers(batches.get_state(), is_shared)}
        if source is not None:
            begin = getattr(iterator.data_adapter, "mirrored_begin", None)
            return {**state, "random": {"begin": begin, "now": source.get()}}
        return state

    def set_state(self, state: dict[str, Any] | None, first: int) -> None:
        """Makes the next epoch of `fit` continue from a data position that a backup stored.

        Args:
            state: A result of `get_state`; None in backups of earlier versions.
            first: The number of steps of the epoch before the backup.
        """
        iterator = self._iterator
        if iterator is None:
            return
        self.restored = (first, state)
        passed = first if state is None else state["passed"]
        state = {} if state is None else state
        self._validated = state.get("validation")
        resumption = self._resumption = _Resumption(first, passed, passed)
        batches, source = _batches(iterator), _random_state(iterator.data_adapter)
        is_known = not _has_unknown_order(iterator.data_adapter)
        if batches is not None:
            is_known = _restored(batches, state.get("dataset"), passed)
            resumption.to_read = 0 if is_known else passed
        elif source is not None:
            states = state.get("random") or {}
            is_known = states.get("now") is not None and (not passed or states.get("begin") is not None)
            if is_known and passed:
                iterator.data_adapter.mirrored_begin_from = states["begin"]
                # If the epoch had begun, its first callbacks have drawn from it before the backup, and draw again when
                # the epoch is resumed. The value at the backup is set afterwards, which undoes the second draw.
                resumption.random = (source, states["now"] if first else None)
            if is_known and not first:
                source.set(states["now"])
        if not is_known:
            _warn()

    def begin_anew(self) -> None:
        """Cancels the effect of `set_state`: the first epoch of `fit` begins at its first batch."""
        self._resumption, self.restored, self._validated = None, (0, None), None
        if self._iterator is not None:
            self._iterator.data_adapter.__dict__.pop("mirrored_begin_from", None)
            batches = _batches(self._iterator)
            if batches is not None:
                batches.begin_anew()

    def take(self, iterator: EpochIterator) -> _Resumption | None:
        """Removes and returns the `_Resumption` of a resumed epoch; None if the epoch begins at the start."""
        if iterator is not self._iterator:
            return None
        resumption, self._resumption = self._resumption, None
        return resumption


_current: Final = InProgress[FitPosition]("mirrored.keras_fit_position")


def position() -> FitPosition | None:
    """Returns the `FitPosition` of the `fit` call in progress; None outside `fit`."""
    return _current.get()


def _batches(iterator: Any) -> KerasBatches | None:
    batches = getattr(iterator.data_adapter, "py_dataset", None)
    return batches if isinstance(batches, KerasBatches) else None


def _counting(batches: KerasBatches | None) -> set[int]:
    """Returns the ids of the steps of a `Dataset` that count its passes, because their order or numbers vary."""
    steps, found = [None if batches is None else getattr(batches.dataset, "node", None)], set()
    while steps:
        step = steps.pop()
        if step is not None:
            steps.extend(step.parents)
            found |= {id(step)} if step.draws or hasattr(step, "passes") else set()
    return found


def _of_all_workers(state: Any, is_shared: bool) -> Any:
    """Returns the position common to all workers, or the positions of all if each worker reads its own data."""
    if not is_shared:
        return state
    everyone = host_allgather("BackupAndRestore", "collect the data positions of all workers", state)
    common = common_position(everyone)
    return {_WORKERS: everyone} if common is None else common


def _restored(batches: KerasBatches, state: Any, passed: int) -> bool:
    """Restores the position of a dataset; returns False if `state` does not fit the dataset."""
    if isinstance(state, dict) and state.keys() == {_WORKERS}:
        workers = distributed.num_processes() if distributed.is_connected() else 1
        here = distributed.this_process() if distributed.is_connected() else 0
        state = state[_WORKERS][here] if len(state[_WORKERS]) == workers else None
    if state is None:
        return False
    try:
        batches.set_state(state, is_new_pass=not passed)
    except ArgumentError:  # of another pipeline
        return False
    return True


def _warn() -> None:
    warnings.warn(
        "BackupAndRestore: the order of the data in the interrupted run cannot be restored\n"
        "  rule:   a resumed run uses every example once per epoch if its data is the same and has the same order; the "
        "order is saved for arrays, and for a Dataset or distributed dataset with the same steps\n"
        "  remedy: pass shuffle=False, or the Dataset of the interrupted run; to start a new run, another backup_dir",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


def connect_position() -> None:
    """Patches `fit` and Keras' data iterators to record how far `fit` has read its training data."""
    replace("keras", EpochIterator, "_enumerate_iterator", _resuming(EpochIterator._enumerate_iterator))
    replace("keras", EpochIterator, "reset", _noting(EpochIterator.reset))
    replace("keras", ArrayDataAdapter, "_get_iterator", _keeping_random_state(ArrayDataAdapter._get_iterator))
    for name in ("_finite_generator", "_infinite_generator"):
        replace("keras", PyDatasetAdapter, name, _keeping_random_state(getattr(PyDatasetAdapter, name)))
    replace("keras", keras.Model, "fit", _with_position(keras.Model.fit))


def _noting(reset: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(reset)
    def noting(self: EpochIterator) -> None:
        here = _current.get()
        if here is not None:
            here.note(self)
        reset(self)

    return noting


def _keeping_random_state(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' batch generators to record and restore the random state that shuffles the data."""

    @functools.wraps(read)
    def drawing(self: Any, *args: Any) -> Iterator[Any]:
        source = _random_state(self)
        if source is not None and _current.get() is not None:
            begin_from = self.__dict__.pop("mirrored_begin_from", None)
            if begin_from is not None:
                source.set(begin_from)
            self.mirrored_begin = source.get()
        with contextlib.suppress(EndOfData):
            yield from read(self, *args)

    return drawing


def _resuming(enumerate_steps: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(enumerate_steps)
    def resuming(self: EpochIterator) -> Iterator[Any]:
        batches, steps = _batches(self), resumed(self)
        is_unknown = batches is not None and batches.num_batches is None
        yield from _in_passes(self, steps) if is_unknown and self.steps_per_epoch else steps

    def resumed(self: EpochIterator) -> Iterator[Any]:
        here = _current.get()
        resumption = None if here is None else here.take(self)
        if resumption is None:
            yield from enumerate_steps(self)
            return
        if self.steps_per_epoch and resumption.passed:
            begin_pass(self, resumption.passed - resumption.first)
        last = 0
        for begin, end, iterator in enumerate_steps(self):
            if not last:
                _read_again(resumption, iterator)
            last = end + 1
            if begin >= resumption.first:
                yield begin, end, iterator
        if resumption.first and last <= resumption.first:
            raise InputError(
                "BackupAndRestore",
                found=f"the epoch was interrupted after {resumption.first} batches, and the data have {last}",
                rule="a resumed run uses the same data as the interrupted run",
                remedy="pass the same data, or another backup_dir to start a new run",
            )

    return resuming


def _in_passes(self: EpochIterator, steps: Iterator[Any]) -> Iterator[Any]:
    """Wraps Keras' step iterator to restart a dataset of unknown length that ends before `steps_per_epoch` steps.

    Keras restarts only data of known length; otherwise it takes the end of the data for the end of the epoch.
    """
    for begin, end, iterator in steps:
        if not begin and steps_seen(self) > self.steps_per_execution:
            first = list(itertools.islice(iterator, 1))
            iterator = itertools.chain(first, iterator) if first else begin_pass(self, self.steps_per_execution)
        yield begin, end, iterator


def _read_again(resumption: _Resumption, iterator: Iterator[Any]) -> None:
    source, after = resumption.random or (None, None)
    if source is not None and after is None:
        after = source.get()
    for _ in range(resumption.to_read):
        next(iterator, None)
    if source is not None:
        source.set(after)


def _with_position(fit: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def with_position(self: Model, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments.get("callbacks")
        with _current.within(FitPosition(_flat(given), self)):
            return fit(self, *args, **kwargs)

    return with_position


def _flat(callbacks: Any) -> list[Any]:
    """Returns a list of the callbacks passed to `fit`, which may be None, one callback, a list or a `CallbackList`."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if isinstance(callbacks, (list, tuple)):
        return list(callbacks)
    return [] if callbacks is None else [callbacks]
