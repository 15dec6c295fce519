"""The manifest of a checkpoint: a JSON file with all names, shapes, dtypes and file checksums.

A checkpoint is a folder with ``mirrored.json`` and ``arrays/``, which has Orbax's format. The manifest contains names,
shapes and dtypes, and nothing about devices, so a checkpoint can be restored on any number of devices and replicas.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirrored.checkpoint.json_state import to_json
from mirrored.checkpoint.saved import Saved
from mirrored.errors import DamagedCheckpointError, MissingCheckpointError

FILE: Final = "mirrored.json"
ARRAYS: Final = "arrays"
MANIFEST_BEGIN: Final = b'{"checksum":'  # of every manifest
_FORMAT: Final = "mirrored checkpoint"
_VERSION: Final = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The table of contents of a checkpoint: names, shapes and dtypes of all state, and file checksums.

    Attributes:
        leaves: Every piece of state by name; numbers and positions with their values. The slots of an optimizer are in
            the order of their variables in which it created them.
        aliases: Other paths to named objects, in the program that wrote the checkpoint: ``{path: name}``.
        groups: For every optimizer, the names of the variables that have slots, group by group, in the order in which
            the variables were added.
        step: The step given to `CheckpointManager.save`, if any.
        order: When the save began, in nanoseconds since 1970, or later if an earlier checkpoint in the folder states a
            later time; shows which of two checkpoints is newer.
        files: The checksum of every file below ``arrays/``.
        carried: Names that the program did not have when it was saved: it had restored them from an earlier checkpoint
            and was still waiting for the objects that they belong to.
        overlaps: The names of NumPy arrays in common memory, by memory; None in checkpoints of earlier versions.
        empty: The names of dicts and lists that had no items.
        described: Descriptions of texts and other values that are not saved, by name, which a restore compares.
        level: The level of the version that wrote the checkpoint, which saves all state whose `Part.since` is at most
            this number. 0 in checkpoints of versions that do not write it.
        carried_level: The lowest level of the checkpoints from which the names in `carried` come.

    Example:
        >>> import tempfile
        >>> import mirrored as mr
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoint = mr.checkpoint.Checkpoint(w=mr.Variable([1.0, 2.0]))
        >>> path = checkpoint.save(f"{folder.name}/model")
        >>> manifest = mr.checkpoint.read_manifest(path)
        >>> manifest.shape_and_dtype["w"]
        ((2,), 'float32')
        >>> folder.cleanup()
    """

    leaves: dict[str, Saved]
    aliases: dict[str, str]
    groups: dict[str, list[list[str]]]
    step: int | None = None
    order: int = dataclasses.field(default_factory=time.time_ns)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    carried: list[str] = dataclasses.field(default_factory=list)
    overlaps: list[list[str]] | None = None
    empty: list[str] = dataclasses.field(default_factory=list)
    described: dict[str, str] = dataclasses.field(default_factory=dict)
    level: int = 0
    carried_level: int = 0

    def write(self, directory: Path) -> None:
        """Writes the manifest to the file ``mirrored.json``, with the checksums of the array files in `directory`."""
        files = {one: checksum(directory / ARRAYS / one) for one in _files(directory / ARRAYS)}
        body = dataclasses.asdict(dataclasses.replace(self, files=files))
        body["leaves"] = {name: _leaf_to_json(saved) for name, saved in self.leaves.items()}
        text = to_json(body)
        head = {"format": _FORMAT, "version": _VERSION, "checksum": _crc(text.encode()), "contents": body}
        # In the order of the dicts, which `set_state` of an iterator may rely on; the checksum ignores the order.
        head = {name: head[name] for name in sorted(head)}
        (directory / FILE).write_text(json.dumps(head, separators=(",", ":")), encoding="utf-8")

    @property
    def has_former_names(self) -> bool:
        """Whether objects can have the names that earlier versions gave them, such as the positions of keys."""
        return min(self.level, self.carried_level) == 0

    def level_of(self, name: str) -> int:
        """Returns the level that applies to the part to which `name` belongs.

        A part with values that are carried over from an earlier checkpoint has only what that checkpoint had.
        """
        is_carried = name.partition("/")[0] in self._carried_parts
        return min(self.level, self.carried_level) if is_carried else self.level

    @functools.cached_property
    def _carried_parts(self) -> set[str]:
        return {name.partition("/")[0] for name in self.carried}

    @property
    def shape_and_dtype(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each saved value that is an array, as a dict keyed by the value's name."""
        return {name: (tuple(s.value), _stored_dtype(s)) for name, s in self.leaves.items() if s.is_array}

    @property
    def stored_arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each array in the array files, as a dict keyed by the array's name in these files.

        Extends `shape_and_dtype` by the arrays that stack a variable's values on all replicas (`components_key`).
        """
        found = self.shape_and_dtype
        components = [(name, saved.components) for name, saved in self.leaves.items() if saved.components]
        return {
            **found,
            **{components_key(name): ((count, *found[name][0]), found[name][1]) for name, count in components},
        }

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the arrays to write to the array files, as a dict keyed by the names in these files."""
        found: dict[str, np.ndarray[Any, Any]] = {}
        for name, saved in self.leaves.items():
            if saved.is_array:
                found[name] = saved.value
            if saved.components is not None:
                found[components_key(name)] = saved.components
        return found


def components_key(name: str) -> str:
    """Returns the key of a variable's per-replica values in a checkpoint's array files.

    No name of a part is equal to it: keys with a percent sign are escaped.
    """
    return f"{name}/%components"


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Reads and validates the manifest file of a checkpoint.

    Raises:
        MissingCheckpointError: There is no checkpoint at the path.
        DamagedCheckpointError: The manifest was changed or damaged after it was written.

    Example:
        >>> import tempfile
        >>> import mirrored as mr
        >>> folder = tempfile.TemporaryDirectory()
        >>> checkpoint = mr.checkpoint.Checkpoint(w=mr.Variable([1.0, 2.0]))
        >>> path = checkpoint.save(f"{folder.name}/model")
        >>> sorted(mr.checkpoint.read_manifest(path).leaves)
        ['save_counter', 'w']
        >>> folder.cleanup()

    TensorFlow: `tf.train.list_variables` returns the names and shapes.
    """
    directory = Path(directory)
    path = directory / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _missing_error(directory) from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged_error(directory, f"{FILE} cannot be read: {error}") from error
    try:
        head = json.loads(text)
        body, stated = head["contents"], head["checksum"]
        version, form = head["version"], head.get("format")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_error(directory, f"{FILE} is not a valid manifest: {error}") from None
    if version != _VERSION:
        raise damaged_error(directory, f"{FILE} has version {version!r}, but this version of mirrored reads {_VERSION}")
    if form != _FORMAT:
        raise damaged_error(directory, f"{FILE} has the format {form!r}, not {_FORMAT!r}")
    if _crc(to_json(body).encode()) != stated:
        raise damaged_error(directory, f"the checksum of {FILE} does not match its contents")
    leaves = {name: _leaf_from_json(saved) for name, saved in body.pop("leaves").items()}
    unknown = body.keys() - {field.name for field in dataclasses.fields(Manifest)}
    if unknown:
        raise damaged_error(directory, f"{FILE} is of a newer version of mirrored: it has {', '.join(sorted(unknown))}")
    return Manifest(leaves=leaves, **body)


def checksum(path: Path) -> str:
    """Returns the CRC-32 checksum and the size of a file."""
    total, size = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total, size = zlib.crc32(block, total), size + len(block)
    return f"{total:08x}-{size}"


def is_checkpoint(directory: Path) -> bool:
    """Returns whether a path is a completely written checkpoint."""
    return (directory / FILE).is_file()


def _files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _leaf_to_json(saved: Saved) -> dict[str, Any]:
    # For an array, the manifest stores the shape of the stored data instead of the value. It differs from the shape of
    # the leaf by the axis of components or of the words of a key.
    value = list(saved.value.shape) if saved.is_array else saved.value
    components = {} if saved.components is None else {"components": len(saved.components)}
    key = {} if saved.key is None else {"key": saved.key}
    array_type = {} if not saved.array_type else {"array_type": saved.array_type}
    own = {"kind": saved.kind, "shape": list(saved.shape), "dtype": saved.dtype, "value": value}
    return {**own, **components, **key, **array_type}


def _leaf_from_json(leaf: dict[str, Any]) -> Saved:
    return Saved(
        leaf["kind"],
        tuple(leaf["shape"]),
        leaf["dtype"],
        leaf["value"],
        leaf.get("components"),
        leaf.get("key"),
        leaf.get("array_type", ""),
    )


def _stored_dtype(saved: Saved) -> str:
    return "uint32" if saved.is_key else saved.dtype


def _missing_error(directory: Path) -> MissingCheckpointError:
    there = directory.exists()
    return MissingCheckpointError(
        "restoring a checkpoint",
        found=f"{directory} {f'has no {FILE}: it is not a checkpoint of mirrored' if there else 'does not exist'}",
        rule="the path must be that of a finished checkpoint, as save() returned it",
        remedy=nearby(directory),
    )


def nearby(directory: Path) -> str:
    """Returns the remedy that names the checkpoints in a folder, or in the one that contains it."""
    inside = [directory, directory.parent]
    for place in inside:
        found = sorted(one.name for one in place.iterdir() if is_checkpoint(one)) if place.is_dir() else []
        if found:
            return f"pass one of those in {place}: {', '.join(found[-5:])} (latest_checkpoint returns the newest)"
    return "use latest_checkpoint(directory), which returns the newest checkpoint in a folder, or None"


def no_manifest_error(directory: Path) -> DamagedCheckpointError:
    """Creates the error for a checkpoint whose manifest file is missing."""
    return damaged_error(directory, f"{FILE} is missing")


def damaged_error(directory: Path, found: str) -> DamagedCheckpointError:
    """Returns the error for a checkpoint that is not as it was written; `found` says in what."""
    return DamagedCheckpointError(
        f"reading the checkpoint {directory}",
        found=found,
        rule="a checkpoint can be read only if all of its files are as they were written; nothing was restored",
        remedy="restore an older checkpoint by its path",
    )
