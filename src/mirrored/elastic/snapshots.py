"""A worker's snapshots: copies of the training state in host memory, which are broadcast to workers that join."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from mirrored._jax import distributed
from mirrored._threads import start
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.memory import AllComponents, Pending
from mirrored.checkpoint.saved import Saved
from mirrored.compilation.dispatch import first_line
from mirrored.elastic.link import Place

_log: Final = logging.getLogger("mirrored.elastic")
_CHUNK_BYTES: Final = 1 << 24
_LEAST_BYTES: Final = 1 << 12
_SHARE_SECONDS: Final = 3600.0
_KEY: Final = "mirrored/elastic/state"
_OTHERS: Final = tuple(  # further fields of a manifest
    field.name for field in dataclasses.fields(Manifest) if field.name not in ("leaves", "aliases", "groups")
)
_KINDS: Final = {kind.__name__: kind for kind in (Saved, AllComponents)}


class Snapshots:
    """Keeps the newest complete snapshot of this worker; a thread completes pending snapshots, one after another.

    An older one is of no use: all workers continue from the newest snapshot that any of them has, and those that lack
    it receive it (`membership`). A snapshot that waits to be copied is dropped when the devices have computed a newer
    one. If steps are faster than copies to this host, the devices keep the arrays of the snapshot that is being copied,
    of the next one, and of those of the steps in flight, whose number is bounded.

    Args:
        completed: Called, in that thread, with the step of each completed snapshot.
        is_change: Called, in that thread, with the exception of a snapshot that failed; returns whether its cause is a
            change of the workers. Other failures are logged as warnings.

    Attributes:
        seconds: The estimated time of the last snapshot's copies: twice the copy to this host, because the copy on the
            devices takes about as long.
    """

    def __init__(
        self, completed: Callable[[int], object], is_change: Callable[[Exception], bool] = lambda error: False
    ) -> None:
        self.seconds = 0.0
        self._completed, self._is_change = completed, is_change
        self._kept: dict[int, Manifest] = {}
        self._waiting: deque[tuple[int, Pending]] = deque()
        self._is_copying = False
        self._changed = threading.Condition()
        start(threading.Thread(target=self._work, name="mirrored-snapshots", daemon=True))

    @property
    def steps(self) -> list[int]:
        """A list with the step of the newest complete snapshot; an empty list if there is no complete snapshot."""
        return sorted(self._kept)

    def __getitem__(self, step: int) -> Manifest:
        return self._kept[step]

    def add(self, step: int, pending: Pending) -> None:
        """Adds a pending snapshot; a background thread copies the snapshot's arrays to this host."""
        with self._changed:
            self._waiting.append((step, pending))
            self._drop_superseded()
            self._changed.notify_all()

    def _drop_superseded(self) -> None:
        for position in range(len(self._waiting) - 1, 0, -1):
            if self._waiting[position][1].is_computed():
                for _ in range(position):
                    self._waiting.popleft()
                return

    def wait(self) -> None:
        """Waits until every pending snapshot is complete, has failed, or is dropped because of a newer one.

        If a collective has failed, pending snapshots fail soon.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_copying)

    def forget_all_but(self, step: int | None) -> None:
        """Forgets all snapshots except the one taken at `step`."""
        self._kept = {one: manifest for one, manifest in self._kept.items() if one == step}

    def put(self, step: int, manifest: Manifest) -> None:
        """Replaces this worker's snapshot with the given complete snapshot, unless the given one is older."""
        if step >= max(self._kept, default=step):
            self._kept = {step: manifest}

    def _failed(self, step: int, error: Exception) -> None:
        # When a worker is lost, the news may come after the error of a collective.
        if not self._is_change(error):
            _log.warning(
                "the snapshot after step %d failed: %s; if the workers change, training continues from %s",
                step,
                first_line(error),
                f"step {max(self._kept)}" if self._kept else "the beginning or the newest checkpoint",
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._drop_superseded()
                step, pending = self._waiting.popleft()
                self._is_copying = True
            try:
                pending.wait()
                began = time.perf_counter()
                self.put(step, pending.finish())
                self.seconds = 2 * (time.perf_counter() - began)
                self._completed(step)
            except Exception as error:
                self._failed(step, error)
            finally:
                pending = None  # type: ignore[assignment]  # it holds arrays of the backend
                with self._changed:
                    self._is_copying = False
                    self._changed.notify_all()


def share(
    manifest: Manifest | None, place: Place, add: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> Manifest:
    """Sends a snapshot from a worker that has it to all workers of the membership epoch; returns the snapshot.

    Context: all workers of an epoch, before the training function begins.

    Args:
        manifest: The snapshot, on the workers that have it.
        place: This worker's place.
        add: Sums an array over all workers.
    """
    is_source = place.rank == place.source
    head, parts = ("", []) if manifest is None else packed(manifest)
    data = np.concatenate(parts) if parts and is_source else np.zeros(0, np.uint8)
    if is_source:
        distributed.put(_KEY, json.dumps([head, len(data)]))
    head, size = json.loads(distributed.get(_KEY, _SHARE_SECONDS))
    chunk = min(_CHUNK_BYTES, max(_LEAST_BYTES, 1 << (size - 1).bit_length() if size else 0))
    received = np.zeros(-(-size // chunk) * chunk, np.uint8)
    for begin in range(0, size, chunk):
        part = np.zeros(chunk, np.uint8)
        if is_source:
            piece = data[begin : begin + chunk]
            part[: len(piece)] = piece
        received[begin : begin + chunk] = add(part)
    return unpacked(head, received[:size]) if manifest is None else manifest


def packed(manifest: Manifest) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """Serializes a snapshot to a JSON description and a list of byte arrays, one per array of the snapshot."""
    leaves: dict[str, Any] = {}
    parts: list[np.ndarray[Any, Any]] = []
    for name, saved in manifest.leaves.items():
        value = _described(saved.value, parts) if saved.is_array else saved.value
        components = None if saved.components is None else _described(saved.components, parts)
        described = [type(saved).__name__, saved.kind, list(saved.shape), saved.dtype, value, components]
        leaves[name] = [*described, saved.key, saved.array_type]
    others = {name: getattr(manifest, name) for name in _OTHERS}
    return json.dumps([leaves, manifest.aliases, manifest.groups, others]), parts


def _described(value: object, parts: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Appends the bytes of an array to `parts`, and returns its dtype, shape and number of bytes."""
    array = np.ascontiguousarray(value)
    parts.append(array.reshape(-1).view(np.uint8))
    return [str(array.dtype), list(np.shape(value)), array.nbytes]


def unpacked(head: str, data: np.ndarray[Any, Any]) -> Manifest:
    """Converts a JSON description and bytes, as returned by `packed`, back to the snapshot."""
    described, aliases, groups, others = json.loads(head)
    leaves, at = {}, 0

    def array(own: str, full: list[int], size: int) -> np.ndarray[Any, Any]:
        nonlocal at
        at += size
        return data[at - size : at].copy().view(np.dtype(own)).reshape(full)

    for name, (kind, what, shape, dtype, value, components, key, array_type) in described.items():
        saved = _KINDS[kind](what, tuple(shape), dtype, value, key=key, array_type=array_type)
        if saved.is_array:
            saved = dataclasses.replace(saved, value=array(*value))
        leaves[name] = saved if components is None else dataclasses.replace(saved, components=array(*components))
    return Manifest(leaves, aliases, groups, **others)
