"""Where a pipeline begins: arrays, generators, files."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from mirrored._jax.host_memory import frozen
from mirrored.data import files, indexed_sources, specs, storing, streams
from mirrored.data.dataset_steps import Steps
from mirrored.data.elements import as_element
from mirrored.errors import ArgumentError


class Making(Steps):
    """The class methods of `Dataset` that make one."""

    @classmethod
    def range(cls, *args: int) -> Self:
        """The integers of `range(*args)`, as int64 scalars.

        Args:
            *args: stop; or start, stop; or start, stop, step.
        """
        return cls(indexed_sources.RangeSource(range(*map(int, args))))

    @classmethod
    def from_tensors(cls, tensors: Any) -> Self:
        """One element.

        Args:
            tensors: A pytree of arrays; lists become arrays.
        """
        return cls(indexed_sources.ListSource((jax.tree.map(frozen, as_element(tensors, "Dataset.from_tensors")),)))

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Self:
        """One element per row of the arrays.

        The arrays are copied once, into aligned memory. Memory-mapped ones are read in place, batch by batch: what is
        written to the file meanwhile shows.

        Args:
            tensors: A pytree of arrays ``[examples, ...]``; lists become arrays.

        Raises:
            StructureError: A leaf has no leading dim, or the leaves disagree about it.

        Example:
            >>> from mirrored.data import Dataset
            >>> for element in Dataset.from_tensor_slices({"x": [1.0, 2.0], "y": [3, 4]}):
            ...     print(element["x"], element["y"])
            1.0 3
            2.0 4
        """
        return cls(indexed_sources.ArraySource.of(tensors, "Dataset.from_tensor_slices"))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] = (),
        output_signature: Any = None,
    ) -> Self:
        """What `generator(*args)` yields.

        Args:
            generator: Returns an iterable; called anew for every iteration.
            output_types: A pytree of dtypes, as TensorFlow had it before `output_signature`.
            output_shapes: A pytree of shapes that goes with `output_types`.
            args: Passed to `generator`.
            output_signature: A pytree of specs (anything with shape and dtype); elements are cast to the dtypes, and
                refused if structure or shape differ. None: anything goes.
        """
        signature = _signature(output_types, output_shapes, output_signature)
        return cls(streams.IterableSource(functools.partial(generator, *args), signature, "Dataset.from_generator"))

    @classmethod
    def list_files(cls, file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Self:
        """The paths that match a pattern, as bytes.

        Args:
            file_pattern: A glob pattern, or a list of them.
            shuffle: Whether in another order every iteration; True by default.
            seed: For the shuffle.

        Raises:
            ArgumentError: No file matches.
        """
        patterns = files.file_names(file_pattern, "Dataset.list_files")
        found = sorted(path for pattern in patterns for path in glob.glob(pattern))
        if not found:
            raise ArgumentError(
                "Dataset.list_files",
                found=f"no file matches {', '.join(patterns)}",
                rule="at least one file matches",
                remedy="check the pattern; a folder needs a trailing /*",
            )
        listed: Any = cls(indexed_sources.ListSource(tuple(os.fsencode(path) for path in found)))
        made: Self = listed.shuffle(len(found), seed) if shuffle or shuffle is None else listed
        return made

    @classmethod
    def from_text_lines(cls, filenames: Any, compression_type: str | None = None) -> Self:
        """The lines of text files, as bytes without their ends.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        TensorFlow: `tf.data.TextLineDataset`.
        """
        return cls._from_files(filenames, files.read_line, compression_type, "TextLineDataset")

    @classmethod
    def from_tfrecords(cls, filenames: Any, compression_type: str | None = None) -> Self:
        """The records of TFRecord files, as bytes; their CRCs are checked.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        TensorFlow: `tf.data.TFRecordDataset`.
        """
        return cls._from_files(filenames, files.read_tfrecord, compression_type, "TFRecordDataset")

    @classmethod
    def load(cls, path: str | os.PathLike[str], element_spec: Any = None, compression: str | None = None) -> Self:
        """The elements that `save` has written, found by position.

        Args:
            path: The folder.
            element_spec: Ignored: the file knows it.
            compression: Ignored.

        Raises:
            DataFileError: There is no such file, or it is damaged.

        TensorFlow: `tf.data.Dataset.load`.
        """
        del element_spec, compression
        return cls(storing.StoredSource(storing.Stored(path, "Dataset.load")))

    @classmethod
    def _from_files(cls, names: Any, read: Callable[..., Any], compression: str | None, called: str) -> Self:
        packing = files.check_compression(compression, called)
        if isinstance(names, Steps):
            listing: Any = cls._of(names._node)
            opened: Self = listing.flat_map(lambda name: cls._from_files(name, read, packing, called))
            return opened
        return cls(files.FileSource(files.file_names(names, called), read, packing, called))


def _signature(types: Any, shapes: Any, signature: Any) -> Any:
    if signature is not None:
        return specs.as_spec(signature)
    if types is None or shapes is None:
        return None
    dtypes, treedef = jax.tree.flatten(types)
    flat = jax.tree.leaves(shapes, is_leaf=lambda part: isinstance(part, list | tuple) and not _has_shapes(part))
    made = [
        specs.ArraySpec(tuple(shape), np.dtype(getattr(dtype, "name", dtype)))
        for dtype, shape in zip(dtypes, flat, strict=True)
    ]
    return jax.tree.unflatten(treedef, made)


def _has_shapes(part: Any) -> bool:
    return any(isinstance(item, list | tuple) for item in part)
