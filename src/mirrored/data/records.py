"""Writes TFRecord files."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from types import TracebackType
from typing import Any, Self

from mirrored.data.files import check_compression, masked_crc
from mirrored.errors import ArgumentTypeError, InputError


class TFRecordWriter:
    """Writes records to a TFRecord file, with their CRCs.

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
        """Appends a record.

        Raises:
            ArgumentTypeError: `record` is not bytes.
            InputError: The writer is closed.
        """
        if not isinstance(record, bytes):
            raise ArgumentTypeError(
                "TFRecordWriter.write",
                found=f"a record of type {type(record).__name__}",
                rule="a record is a bytes object",
                remedy="write example.SerializeToString(), or text.encode()",
            )
        if self._file.closed:
            raise InputError(
                "TFRecordWriter.write",
                found="the writer is closed",
                rule="records are written before close()",
                remedy="write inside the with block, or open another file",
            )
        length = struct.pack("<Q", len(record))
        self._write(length + struct.pack("<I", masked_crc(length)))
        self._write(record + struct.pack("<I", masked_crc(record)))

    def _write(self, data: bytes) -> None:
        self._file.write(data if self._packer is None else self._packer.compress(data))

    def flush(self) -> None:
        """Flushes written records to the operating system. A compressed file is complete only after `close`."""
        if self._packer is not None:
            self._file.write(self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Completes and closes the file. Repeated calls have no effect."""
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
