"""The files of elements that `Dataset.save`, `snapshot` and `cache(filename)` write, and `load` reads.

The file `elements.tfrecord` consists of TFRecords: first the version, the structure of the elements and the seeds of
the shuffles before a cache, as JSON; then one record per element with the dims and bytes of every leaf; then the
offsets of all elements; then the indices of seeds without effect, if any, as JSON; last the offset of the record of
offsets. A complete file is renamed to its path, so an interrupted write leaves the previous file unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import jax.numpy as jnp
import numpy as np

from mirrored._typing import PyTree
from mirrored.data.elements import Element
from mirrored.data.options import INFINITE_CARDINALITY
from mirrored.data.pipeline.files import RECORD_OVERHEAD_BYTES, TFRecordWriter, open_file, read_tfrecord
from mirrored.data.pipeline.nodes import (
    IndexedNode,
    ItemRows,
    Node,
    Rows,
    Run,
    with_open_dims,
)
from mirrored.data.specs import ArraySpec, NoElementError
from mirrored.errors import ArgumentError, DataFileError, StructureError

FILE: Final = "elements.tfrecord"
_VERSION: Final = 1
_LENGTH: Final = struct.Struct("<Q")
# How every file begins: the length of the first record and its checksum, then JSON.
_HEAD_OFFSET_BYTES: Final = 12
_HEAD_BEGIN: Final = b'{"version": '
_TEXT: Final = "text"
_KINDS: Final[dict[str, Any]] = {"dict": dict, "tuple": tuple}


def store(
    node: Node,
    folder: str | os.PathLike[str],
    called: str,
    elements: Iterator[Element],
    seeds: Sequence[int] = (),
    unused: Iterable[int] = (),
) -> None:
    """Writes all elements of a dataset to a file in a folder, and replaces the file of an earlier call.

    Args:
        node: The pipeline.
        folder: The folder. It is created if it does not exist.
        called: The function that the user called, for messages.
        elements: The elements of one pass over the pipeline.
        seeds: The seeds of the pass, which the file contains.
        unused: The places in `seeds` of those on which no element depends. It is iterated after the last element.

    Raises:
        ArgumentError: The dataset is infinite; or the folder is a file, or contains another file of this name.
        StructureError: Elements differ in structure or dtype, or have dictionaries whose keys are not strings.
    """
    if node.cardinality == INFINITE_CARDINALITY:
        raise ArgumentError(
            called,
            found="the dataset is infinite",
            rule="only a finite dataset can be written to a file",
            remedy="call .take(n) first, or call .repeat() afterwards",
        )
    place = Path(folder)
    _check_replaceable(place, called)
    place.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place, prefix=FILE + ".")
    os.close(handle)
    try:
        _write(node, name, called, elements, seeds, unused)
        os.replace(name, place / FILE)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _check_replaceable(folder: Path, called: str) -> None:
    """Raises ArgumentError if writing to the folder would replace a file that `store` has not written."""
    path = folder / FILE
    is_file = folder.exists() and not folder.is_dir()
    if not is_file and (not os.path.lexists(path) or (path.is_file() and _is_stored(path))):
        return
    raise ArgumentError(
        called,
        found=f"{folder} is a file" if is_file else f"{path} exists and was not written by Dataset.save/cache/snapshot",
        rule="only a file that Dataset.save, cache or snapshot has written can be replaced; nothing was overwritten",
        remedy="pass another folder, or move the existing file away",
    )


def _is_stored(path: Path) -> bool:
    """Returns whether a file is empty or begins with the header that `store` writes."""
    with path.open("rb") as file:
        begin = file.read(_HEAD_OFFSET_BYTES + len(_HEAD_BEGIN))
    return not begin or begin[_HEAD_OFFSET_BYTES:] == _HEAD_BEGIN


def _write(
    node: Node, path: str, called: str, elements: Iterator[Element], seeds: Sequence[int], unused: Iterable[int]
) -> None:
    begins = []
    with TFRecordWriter(path) as writer:
        first = list(itertools.islice(elements, 1))
        structure = _structure_of(node, first, called)
        head = {"version": _VERSION, "structure": structure}
        place = _written(writer, json.dumps({**head, "seeds": list(seeds)} if seeds else head).encode())
        for element in itertools.chain(first, elements if first else ()):  # an exhausted iterator warns of a loop
            begins.append(place)
            out = io.BytesIO()
            _pack(element, structure, out, called)
            place += _written(writer, out.getvalue())
        _written(writer, np.asarray(begins, "<u8").tobytes())
        if places := list(unused):
            _written(writer, json.dumps(places).encode())
        _written(writer, _LENGTH.pack(place))


def _written(writer: TFRecordWriter, record: bytes) -> int:
    writer.write(record)
    return len(record) + RECORD_OVERHEAD_BYTES


def _structure_of(node: Node, first: list[Element], called: str) -> Any:
    """Returns the elements' structure as JSON-like data; None if an empty dataset does not determine the structure."""
    try:
        spec = node.spec
    except NoElementError:  # in a separate run; the run that is stored can have elements
        if not first:
            return None
        spec = with_open_dims(first[0])
    return _structure(spec, called)


def _structure(spec: PyTree, called: str) -> Any:
    """Converts the spec of the elements to JSON-like data, which is stored in the file."""
    if isinstance(spec, dict):
        if not all(isinstance(key, str) for key in spec):
            raise StructureError(
                called,
                found=f"a dictionary with the keys {list(spec)}",
                rule="the keys of stored dictionaries must be strings",
                remedy="map the elements to dictionaries with string keys, or to tuples",
            )
        return {"dict": {key: _structure(part, called) for key, part in spec.items()}}
    if isinstance(spec, tuple) and not hasattr(spec, "_fields"):  # a named tuple would become a plain one
        return {"tuple": [_structure(part, called) for part in spec]}
    if not isinstance(spec, ArraySpec) or spec.dtype.fields is not None:
        raise StructureError(
            called,
            found=f"elements that contain {spec!r}",
            rule="stored elements must be dictionaries or tuples of arrays and bytes, "
            "without records or named tuples, and without typed PRNG keys",
            remedy="map the elements to dictionaries or tuples before they are stored, and keys to their key data: "
            "jax.random.key_data(keys); jax.random.wrap_key_data makes keys of it again",
        )
    return {"dtype": _TEXT if spec.dtype.kind in "OSU" else spec.dtype.name, "shape": list(spec.shape)}


def _pack(element: Element, structure: Mapping[str, Any], out: IO[bytes], called: str) -> None:
    if "dtype" not in structure:
        ((kind, parts),) = structure.items()
        fits = isinstance(element, _KINDS[kind]) and len(element) == len(parts)
        if not fits or (kind == "dict" and set(element) != set(parts)):
            raise _structure_error(called, f"a {type(element).__name__} of {element!r}", structure)
        for key, part in parts.items() if kind == "dict" else enumerate(parts):
            _pack(element[key], part, out, called)
        return
    array = np.asarray(element, object) if isinstance(element, bytes) else np.asarray(element)
    is_text = array.dtype.kind in "OSU"
    if is_text != (structure["dtype"] == _TEXT) or not (is_text or array.dtype.name == structure["dtype"]):
        raise _structure_error(called, f"{array.dtype}{list(array.shape)}", structure)
    if array.ndim != len(structure["shape"]):
        raise _structure_error(called, f"{array.dtype}{list(array.shape)}", structure)
    out.write(struct.pack(f"<{array.ndim}q", *array.shape))
    if not is_text:
        # The name of a dtype does not tell the byte order, so the file has the bytes in the native one.
        out.write(array.astype(array.dtype.newbyteorder("="), copy=False).tobytes())
        return
    for one in array.ravel():
        text = _text(one, called)
        out.write(_LENGTH.pack(len(text)) + text)


def _text(one: object, called: str) -> bytes:
    """Converts an item of a string or object array to bytes; encodes strings in UTF-8."""
    if isinstance(one, str):
        return one.encode()
    if isinstance(one, bytes | bytearray):
        return bytes(one)
    raise StructureError(
        called,
        found=f"an array of objects contains {one!r} of type {type(one).__name__}",
        rule="of arrays of objects, only strings and bytes can be stored",
        remedy="map the elements to dictionaries or tuples with one array per type: numbers.astype(np.float32), for "
        "example",
    )


def _structure_error(called: str, found: str, structure: Mapping[str, Any]) -> StructureError:
    return StructureError(
        called,
        found=f"an element has {found}, the first ones have {json.dumps(structure)}",
        rule="all stored elements must have the same structure, dtypes and number of dims",
        remedy="map all elements to one structure and dtype",
    )


class Stored:
    """An open file of dataset elements that `store` has written, with thread-safe access by index.

    Args:
        folder: The folder passed to `store`.
        called: The function that the user called, for messages.

    Raises:
        DataFileError: The file does not exist or is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str], called: str) -> None:
        self._path, self._called = str(Path(folder) / FILE), called
        self._lock = threading.Lock()
        try:
            with open_file(self._path, "", called) as file:
                self._identity = _identity(os.fstat(file.fileno()))
                self._file: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            head = json.loads(self._record(0, 0))
            last = len(self._file) - _LENGTH.size - RECORD_OVERHEAD_BYTES
            (end,) = _LENGTH.unpack(self._record(last, 0))
            self._begins = np.frombuffer(self._record(end, 0), "<u8")
            further = end + self._begins.nbytes + RECORD_OVERHEAD_BYTES
            unused = json.loads(self._record(further, 0)) if further < last else []
        except (OSError, ValueError, struct.error) as error:
            raise error if isinstance(error, DataFileError) else self._damaged_error(str(error)) from error
        if head.get("version") != _VERSION:
            raise self._damaged_error(
                f"it has version {head.get('version')}, but this version of mirrored reads {_VERSION}"
            )
        self._structure = head["structure"]
        self.seeds: list[int] = head.get("seeds", [])
        """The seeds that the steps had; empty if there are none, or an earlier version wrote the file."""
        self.unused: list[int] = unused
        """The places in `seeds` of those on which no element depends; empty if an earlier version wrote the file."""

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    @property
    def spec(self) -> Any:
        """The shapes and dtypes of the elements in the file, as a pytree of `ArraySpec`.

        Raises:
            NoElementError: The file has no element, and the spec of the stored dataset depended on one.
        """
        if self._structure is None:
            raise NoElementError
        return _spec(self._structure)

    @property
    def is_current(self) -> bool:
        """Whether the file on disk is still the opened one, i.e. was neither deleted nor replaced."""
        try:
            # The mapping keeps the inode of a deleted file, so that no new file can have its number.
            return _identity(os.stat(self._path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # the elements can still be read, even if the folder cannot

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> Element:
        return _unpack(io.BytesIO(self._record(int(self._begins[index]), index)), self._structure)

    def _record(self, offset: int, index: int) -> bytes:
        with self._lock:
            self._file.seek(offset)
            record = read_tfrecord(self._file, self._path, index)
        if record is None:
            raise self._damaged_error("it ends early")
        return record

    def _damaged_error(self, found: str) -> DataFileError:
        return DataFileError(
            self._called,
            found=f"{self._path}: {found}",
            rule="the file must stay as Dataset.save, cache or snapshot wrote it",
            remedy="delete the file and write it again",
        )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _unpack(record: IO[bytes], structure: Mapping[str, Any]) -> Element:
    if "dtype" not in structure:
        return _rebuilt(structure, lambda part: _unpack(record, part))
    dims = struct.unpack(f"<{len(structure['shape'])}q", record.read(8 * len(structure["shape"])))
    count = int(np.prod(dims, dtype=np.int64))
    if structure["dtype"] == _TEXT:
        texts = np.empty(count, object)
        for place in range(count):
            (length,) = _LENGTH.unpack(record.read(_LENGTH.size))
            texts[place] = record.read(length)
        return texts.reshape(dims)[()]
    dtype = jnp.dtype(structure["dtype"])
    return np.frombuffer(record.read(count * dtype.itemsize), dtype).reshape(dims)[()]


def _spec(structure: Mapping[str, Any]) -> Any:
    if "dtype" not in structure:
        return _rebuilt(structure, _spec)
    is_text = structure["dtype"] == _TEXT
    return ArraySpec(tuple(structure["shape"]), np.dtype(object) if is_text else jnp.dtype(structure["dtype"]))


def _rebuilt(structure: Mapping[str, Any], make: Callable[[Any], Any]) -> Any:
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: make(part) for key, part in parts.items()}
    return tuple(make(part) for part in parts)


@dataclasses.dataclass(frozen=True, eq=False)
class StoredSource(IndexedNode):
    """A random-access dataset of the elements in a file that `Dataset.save` has written."""

    stored: Stored

    @property
    def reads_files(self) -> bool:
        return True

    @property
    def cardinality(self) -> int:
        return len(self.stored)

    @property
    def spec(self) -> Any:
        return self.stored.spec

    def open(self, run: Run) -> Rows:
        return rows_in(self.stored)


def rows_in(stored: Stored) -> Rows:
    """Returns the elements of a file as random-access rows."""
    return ItemRows(len(stored), stored.__getitem__)
