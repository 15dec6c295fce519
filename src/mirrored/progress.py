"""A progress bar for training loops that does not wait for the devices."""

from __future__ import annotations

import collections
import importlib.util
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import jax
import numpy as np
import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from mirrored._jax.arrays import is_ready
from mirrored.errors import ArgumentError
from mirrored.variables import Variable

T = TypeVar("T")
_PENDING: Final = 64
_REFRESH_SECONDS: Final = 0.1
_LINE_SECONDS: Final = 10.0


class Progress(Generic[T]):
    """An iterable over a dataset that shows a progress bar during the iteration; created by `mirrored.progress`.

    Example:
        >>> import mirrored as mr
        >>> bar = mr.progress(range(3), description="epoch 1")
        >>> isinstance(bar, mr.Progress)
        True
        >>> for step in bar:
        ...     bar.show(step=step)
        epoch 1: 3 of 3 steps, step 2
    """

    def __init__(
        self, dataset: Iterable[T], total: int | None, description: str, console: rich.console.Console
    ) -> None:
        self._dataset, self._total, self._description, self._console = dataset, total, description, console
        self._pending: collections.deque[dict[str, Any]] = collections.deque(maxlen=_PENDING)
        self._text = ""

    def __repr__(self) -> str:
        of = "" if self._total is None else f" of {self._total} steps"
        return f"<Progress {self._description!r}{of}>"

    def show(self, **values: Any) -> None:
        """Shows values beside the bar, such as the loss, once they have been computed.

        The call does not wait: a value that the devices have not computed yet appears later. If more than 64 calls are
        pending, the oldest are dropped.

        Context: in the body of the loop over this object, outside compiled functions.

        Args:
            **values: Numbers, variables, and arrays of one element.

        Raises:
            ArgumentError: A value is not a single number.

        Example:
            >>> import mirrored as mr
            >>> bar = mr.progress([1.0, 2.0], description="epoch 1")
            >>> for x in bar:
            ...     bar.show(loss=x)
            epoch 1: 2 of 2 steps, loss 2
        """
        self._pending.append({name: _number(name, value) for name, value in values.items()})

    def _newest(self) -> str:
        """Returns the text of the newest values that the devices have computed, without waiting for newer values."""
        while self._pending and all(_is_ready(value) for value in self._pending[0].values()):
            shown = {name: value for name, value in self._pending.popleft().items() if not _is_deleted(value)}
            self._text = "".join(f", {name} {np.asarray(value).item():.4g}" for name, value in shown.items())
        return self._text

    def __iter__(self) -> Iterator[T]:
        """Iterates over the dataset; shows the bar until the iteration ends, also by `break` or an exception."""
        self._text = ""
        self._pending.clear()
        if jax.process_index() != 0:
            yield from self._dataset
        elif self._console.is_terminal if not self._console.is_jupyter else _has_widgets():
            yield from self._with_bar()
        else:
            yield from self._with_lines()

    def _with_bar(self) -> Iterator[T]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}{task.fields[values]}", style="cyan"),
        )
        with RichProgress(*columns, console=self._console) as bar:
            task = bar.add_task(self._description, total=self._total, rate="", values="")
            steps, start, last = 0, time.perf_counter(), 0.0
            try:
                for element in self._dataset:
                    yield element
                    steps, now = steps + 1, time.perf_counter()
                    if now - last >= _REFRESH_SECONDS:
                        last = now
                        bar.update(task, completed=steps, rate=_rate(steps, now - start), values=self._newest())
            finally:
                rate = _rate(steps, time.perf_counter() - start)
                bar.update(task, completed=steps, rate=rate, values=self._newest())

    def _with_lines(self) -> Iterator[T]:
        """Iterates over the dataset, and prints a line every 10 seconds and at the end instead of a bar, for logs."""
        steps, last = 0, time.perf_counter()
        try:
            for element in self._dataset:
                yield element
                steps += 1
                if time.perf_counter() - last >= _LINE_SECONDS:
                    last = time.perf_counter()
                    self._print(steps)
        finally:
            self._print(steps)

    def _print(self, steps: int) -> None:
        of = "" if self._total is None else f" of {self._total}"
        name = f"{self._description}: " if self._description else ""
        self._console.print(f"{name}{steps}{of} steps{self._newest()}", highlight=False, markup=False, soft_wrap=True)


def progress(
    dataset: Iterable[T],
    *,
    total: int | None = None,
    description: str = "",
    console: rich.console.Console | None = None,
) -> Progress[T]:
    """Shows a progress bar while a loop iterates over a dataset, without waiting for the devices.

    On a terminal, and in a notebook with `ipywidgets`, it shows the steps, the time and the steps per second;
    elsewhere it prints a line every 10 seconds. In a job of several workers, only worker 0 shows it. JAX runs steps
    asynchronously: the count is that of the steps started, of which a bounded number are not finished.

    Context: cross-replica, outside compiled functions.

    Args:
        dataset: What the loop iterates over: a distributed dataset, or any other iterable.
        total: The number of steps. Default: the dataset's `cardinality()` or `len()`, if it has one.
        description: A text in front of the bar, such as ``"epoch 1"``.
        console: The rich console. Default: standard output.

    Returns:
        An iterable with the method `show(**values)`.

    Example:
        >>> import mirrored as mr
        >>> total = 0
        >>> bar = mr.progress([1, 2, 3], description="sum")
        >>> for x in bar:
        ...     total += x
        ...     bar.show(total=total)
        sum: 3 of 3 steps, total 6

    TensorFlow: no equivalent; `tf.keras.utils.Progbar` shows values that the loop has fetched, so each step waits.
    """
    total = _length(dataset) if total is None else total
    return Progress(dataset, total, description, rich.console.Console() if console is None else console)


def _has_widgets() -> bool:
    """Returns whether a notebook can show a progress bar, which requires the package `ipywidgets`."""
    return importlib.util.find_spec("ipywidgets") is not None


def _length(dataset: Any) -> int | None:
    if hasattr(dataset, "cardinality"):
        cardinality = dataset.cardinality  # A property of distributed datasets, a method of others.
        count = cardinality() if callable(cardinality) else cardinality
        return int(count) if count >= 0 else None  # Negative constants: infinite or unknown.
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # Without a length, or a loader of an iterable of unknown length.
        return None


def _rate(steps: int, seconds: float) -> str:
    if not steps or not seconds:
        return ""
    return f"{steps / seconds:.3g} steps/s" if steps >= seconds else f"{seconds / steps:.3g} s/step"


def _number(name: str, value: Any) -> Any:
    """Returns a single number to display, without waiting until it is computed; raises an error for other values."""
    value = value.read_value() if isinstance(value, Variable) else value
    if isinstance(value, (int, float, np.generic)) or getattr(value, "size", None) == 1:
        return value
    raise ArgumentError(
        "Progress.show",
        found=f"{name}={type(value).__name__}{list(value.shape) if hasattr(value, 'shape') else ''}",
        rule="a value beside the bar must be a single number",
        remedy="reduce it first: strategy.reduce(op, value, axis=None), where op is mr.ReduceOp.SUM for results of "
        "average_loss and counts, mr.ReduceOp.MEAN for means over the per-replica batch",
    )


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.is_deleted()


def _is_ready(value: Any) -> bool:
    return not isinstance(value, jax.Array) or is_ready(value)
