"""Reads text and TFRecord files, writes TFRecord files, and divides files among workers."""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Final, Self, TypeAlias

import numpy as np

from mirrored._typing import Array, HostArray
from mirrored.data.cursors import Cursor, IterableCursor, SequenceCursor, beyond_end_error
from mirrored.data.elements import Element
from mirrored.data.extra import crc32c
from mirrored.data.no_position import NoPosition
from mirrored.data.options import UNKNOWN_CARDINALITY
from mirrored.data.pipeline.interleaving import InterleaveCursor
from mirrored.data.pipeline.nodes import CursorNode, Run
from mirrored.data.specs import ArraySpec
from mirrored.errors import ArgumentError, ArgumentTypeError, DataFileError, InputError, MirroredError

# Reads records from files: lines of text and TFRecords.

_BLOCK_BYTES: Final = 1 << 20
_COMPRESSIONS: Final = ("", "GZIP", "ZLIB")
_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_MASK_DELTA: Final = 0xA282EAD8
RECORD_OVERHEAD_BYTES: Final = _HEADER.size + _FOOTER.size
"""Size of a TFRecord's header and footer."""


FileNames: TypeAlias = str | bytes | os.PathLike[Any] | Sequence[str | bytes | os.PathLike[Any]] | HostArray | Array
"""One path or several, also as a tensor of strings."""


def file_names(files: FileNames, called: str) -> tuple[str, ...]:
    """Converts a path or an array of paths to a tuple of strings.

    Raises:
        ArgumentError: A value is not a path.
    """
    many = [files] if isinstance(files, str | bytes | os.PathLike) else np.ravel(np.asarray(files, object))
    try:
        return tuple(os.fsdecode(name) for name in many)
    except TypeError:
        raise ArgumentError(
            called,
            found=f"the file names {files!r}",
            rule="a file name must be a str, bytes or a path object",
            remedy="pass a path or a list of paths, or use .flat_map on a dataset of paths",
        ) from None


@dataclasses.dataclass(frozen=True, eq=False)
class FileSource(CursorNode):
    """A dataset of the records of several files.

    Attributes:
        files: The paths.
        read: Reads one record of an open file; returns None at its end.
        compression: "", "GZIP" or "ZLIB".
        called: The function that the user called, for messages.
        cycle: Number of files that are open at a time: one record of each in turn; 1 reads one file after the other.
    """

    files: tuple[str, ...]
    read: Callable[[IO[bytes], str, int], bytes | None]
    compression: str
    called: str
    cycle: int = 1

    @property
    def name(self) -> str:
        """The operation's name in saved positions, with the prefix ``Parallel`` if files are read in parallel."""
        return super().name if self.cycle == 1 else f"Parallel{super().name}"

    @property
    def order(self) -> str:
        return f"num_parallel_reads={self.cycle}" if self.cycle > 1 else ""

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return ArraySpec((), np.dtype(object))

    def open_cursor(self, run: Run) -> Cursor:
        if self.cycle > 1:
            numbers = IterableCursor(lambda: range(len(self.files)), lambda number, _: number)
            return InterleaveCursor(numbers, lambda number, _: _FileCursor(self, self.files[number]), self.cycle, 1)
        return SequenceCursor(self._open)

    def _open(self, number: int) -> Cursor | None:
        return _FileCursor(self, self.files[number]) if number < len(self.files) else None


class _FileCursor:
    def __init__(self, source: FileSource, path: str) -> None:
        self._source, self._path = source, path
        self._file = open_file(path, source.compression, source.called)
        mode = os.stat(path).st_mode
        self._can_seek = not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode))
        self._records = 0

    def __next__(self) -> Element:
        try:
            record = self._source.read(self._file, self._path, self._records)
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, MirroredError):
                raise
            raise _damaged_error(
                self._source.called, self._path, self._records, f"it cannot be read: {error}"
            ) from error
        if record is None:
            raise StopIteration
        self._records += 1
        return record

    def get_state(self) -> Any:
        if not self._can_seek:
            return NoPosition(self._path, self._records)
        return {"offset": self._file.tell(), "records": self._records}

    def set_state(self, state: dict[str, Any]) -> None:
        reached = self._file.seek(state["offset"])
        if not isinstance(self._file, gzip.GzipFile):  # which stops at its end; others can be moved past it
            reached = min(reached, self._file.seek(0, os.SEEK_END))
            self._file.seek(reached)
        if reached < state["offset"]:
            raise beyond_end_error()
        self._records = state["records"]

    def close(self) -> None:
        self._file.close()


def open_file(path: str, compression: str, called: str) -> Any:
    """Opens a file for reading, and decompresses it if required.

    Raises:
        DataFileError: It cannot be opened.
    """
    try:
        if compression == "GZIP":
            return gzip.open(path, "rb")
        if compression == "ZLIB":
            with open(path, "rb") as packed:
                return _inflated(packed)
        return open(path, "rb")
    except (OSError, zlib.error) as error:
        raise DataFileError(
            called,
            found=f"the file {path} cannot be opened: {error}",
            rule="every file of a dataset must exist and be readable when the dataset reaches it",
            remedy="check the path, and that nothing removes files while they are being read",
        ) from error


def _inflated(packed: IO[bytes]) -> io.BytesIO:
    """Decompresses a file of one or several concatenated ZLIB streams.

    Raises:
        zlib.error: A stream is damaged, or the last one is incomplete.
    """
    contents, stream = io.BytesIO(), zlib.decompressobj()
    while block := packed.read(_BLOCK_BYTES):
        while block:
            if stream.eof:
                stream = zlib.decompressobj()
            contents.write(stream.decompress(block))
            block = stream.unused_data
    if not stream.eof:
        raise zlib.error("incomplete or truncated stream")
    contents.seek(0)
    return contents


def check_compression(compression: str | None, called: str) -> str:
    """Validates and normalizes the name of a compression type, such as "GZIP".

    Raises:
        ArgumentError: `compression` is not "", "GZIP" or "ZLIB".
    """
    if (compression or "") not in _COMPRESSIONS:
        raise ArgumentError(
            called,
            found=f"compression_type={compression!r} is not supported",
            rule=f"compression_type must be one of {_COMPRESSIONS}",
            remedy="decompress the files, or pass their compression",
        )
    return compression or ""


def read_line(file: IO[bytes], path: str, record: int) -> bytes | None:
    r"""Returns the next line of a file without its line break (``\n`` or ``\r\n``); None at the end of the file."""
    line = file.readline()
    return without_break(line) if line else None


def without_break(line: bytes) -> bytes:
    r"""Removes the line break (``\n`` or ``\r\n``) at the end of a line, if there is one."""
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def read_tfrecord(file: IO[bytes], path: str, record: int) -> bytes | None:
    """Returns the next record of a TFRecord file and verifies its checksums; None at the end of the file.

    Source: the TFRecord format: length u64, masked CRC32C of the length u32, data, masked CRC32C of the data u32.
    """
    header = file.read(_HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise _damaged_error("TFRecordDataset", path, record, f"its header has {len(header)} of {_HEADER.size} bytes")
    length, length_crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != length_crc:
        raise _damaged_error("TFRecordDataset", path, record, "the CRC of its length is wrong")
    data = file.read(length)
    footer = file.read(_FOOTER.size)
    if len(data) < length or len(footer) < _FOOTER.size:
        raise _damaged_error("TFRecordDataset", path, record, f"the file ends after {len(data)} of its {length} bytes")
    if masked_crc(data) != _FOOTER.unpack(footer)[0]:
        raise _damaged_error("TFRecordDataset", path, record, "the CRC of its data is wrong")
    return data


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC32C checksum of `data`, as TFRecord files store it."""
    crc = int(crc32c().value(data))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _damaged_error(called: str, path: str, record: int, found: str) -> DataFileError:
    return DataFileError(
        called,
        found=f"record {record} of {path}: {found}",
        rule="every record of a file must be complete and match its checksum",
        remedy="write the file again, or omit it from the dataset",
    )


# Writes TFRecord files.


class TFRecordWriter:
    """A writer of TFRecord files, optionally compressed, like `tf.io.TFRecordWriter`.

    Args:
        path: The file. An existing file is replaced.
        compression_type: "", "GZIP" or "ZLIB".

    Example:
        >>> import tempfile
        >>> from mirrored.data import Dataset
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TFRecordWriter(folder + "/a.tfrecord") as writer:
        ...         writer.write(b"one")
        ...     list(Dataset.from_tfrecords(folder + "/a.tfrecord"))
        [b'one']

    TensorFlow: `tf.io.TFRecordWriter`.
    """

    def __init__(self, path: str | os.PathLike[str], compression_type: str | None = None) -> None:
        packing = check_compression(compression_type, "TFRecordWriter")
        self._file: Any = gzip.open(path, "wb") if packing == "GZIP" else open(path, "wb")
        self._packer = zlib.compressobj() if packing == "ZLIB" else None

    def write(self, record: bytes) -> None:
        """Appends a record to the TFRecord file.

        Raises:
            ArgumentTypeError: `record` is not bytes.
            InputError: The writer is closed.
        """
        if not isinstance(record, bytes):
            raise ArgumentTypeError(
                "TFRecordWriter.write",
                found=f"the record is a {type(record).__name__}",
                rule="a record must be a bytes object",
                remedy="write example.SerializeToString(), or text.encode()",
            )
        if self._file.closed:
            raise InputError(
                "TFRecordWriter.write",
                found="the writer is closed",
                rule="records must be written before close()",
                remedy="write inside the with block, or open another file",
            )
        length = struct.pack("<Q", len(record))
        self._write(length + struct.pack("<I", masked_crc(length)))
        self._write(record + struct.pack("<I", masked_crc(record)))

    def _write(self, data: bytes) -> None:
        self._file.write(data if self._packer is None else self._packer.compress(data))

    def flush(self) -> None:
        """Flushes the written records to the operating system; a compressed file is complete only after `close`."""
        if self._packer is not None:
            self._file.write(self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Completes and closes the TFRecord file; repeated calls have no effect."""
        if self._file.closed:
            return
        if self._packer is not None:
            self._file.write(self._packer.flush())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
