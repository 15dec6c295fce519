"""The class methods of `Dataset` that create a dataset from arrays, generators or files."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from mirrored._jax.trees import tree_flatten
from mirrored._typing import DTypeLike, PyTree
from mirrored.data import specs
from mirrored.data.elements import as_element, first_lost, keeps_values
from mirrored.data.pipeline import files, indexed_sources, storing, streams
from mirrored.data.pipeline.iterators import Steps
from mirrored.errors import ArgumentError, StructureError


class Making(Steps):
    """Mixin of `Dataset`: the class methods that create a dataset from arrays, generators or files."""

    @classmethod
    def range(cls, *args: int, output_type: DTypeLike = "int64", name: str | None = None) -> Self:
        """Creates a dataset of the integers of `range(*args)`, as scalars.

        Args:
            *args: stop; or start, stop; or start, stop, step.
            output_type: The dtype of the scalars.
            name: Accepted for compatibility with TensorFlow; ignored.

        Raises:
            ArgumentError: `output_type` cannot represent a number of the range.
        """
        dtype = np.dtype(getattr(output_type, "as_numpy_dtype", output_type))
        numbers = range(*map(int, args))
        lost = [end for end in (*numbers[:1], *numbers[-1:]) if not keeps_values(np.asarray(end), dtype)]
        if lost:
            raise ArgumentError(
                "Dataset.range",
                found=f"the number {lost[0]}, and output_type={dtype.name}",
                rule="output_type must be able to represent every number of the range",
                remedy="pass a larger dtype as output_type, or a smaller range",
            )
        return cls(indexed_sources.RangeSource(numbers, dtype))

    @classmethod
    def from_tensors(cls, tensors: PyTree) -> Self:
        """Creates a dataset with a single element: the given pytree of arrays.

        Args:
            tensors: A pytree of arrays; lists become arrays.
        """
        return cls(indexed_sources.ListSource.of([as_element(tensors, "Dataset.from_tensors")]))

    @classmethod
    def from_tensor_slices(cls, tensors: PyTree) -> Self:
        """Creates a dataset whose element i is the slice ``array[i]`` of every given array.

        The arrays are copied once, into aligned memory. Memory-mapped arrays are read in place, batch by batch, so
        later writes to the file are visible.

        Args:
            tensors: A pytree of arrays ``[examples, ...]``; lists become arrays.

        Raises:
            StructureError: A leaf has no leading dim, or the leading dims differ.

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
        output_types: PyTree = None,
        output_shapes: PyTree = None,
        args: Sequence[Any] = (),
        output_signature: PyTree = None,
    ) -> Self:
        """Creates a dataset of the elements that `generator(*args)` yields.

        Args:
            generator: Returns an iterable; called again for every iteration.
            output_types: A pytree of dtypes, to which elements are cast: TensorFlow's form before `output_signature`.
                Floats are not cast to integers. TensorFlow refuses Python's floats and truncates NumPy's.
            output_shapes: A pytree of shapes to go with `output_types`.
            args: Arguments of `generator`.
            output_signature: A pytree of specs (any objects with shape and dtype). Elements are cast to the dtypes; a
                different structure or shape raises an error. None: elements are not checked.
        """
        signature = _signature(output_types, output_shapes, output_signature)
        if signature is None and output_types is not None and callable(generator):
            generator = _typed(generator, output_types)
        return cls(streams.IterableSource(functools.partial(generator, *args), signature, "Dataset.from_generator"))

    @classmethod
    def list_files(cls, file_pattern: files.FileNames, shuffle: bool | None = None, seed: int | None = None) -> Self:
        """Creates a dataset of the paths of the files that match a glob pattern, as bytes.

        Args:
            file_pattern: A glob pattern, or a list of patterns.
            shuffle: Whether every iteration has a different order; True by default.
            seed: The seed of the shuffle.

        Raises:
            ArgumentError: No file matches.
        """
        patterns = files.file_names(file_pattern, "Dataset.list_files")
        found = sorted(path for pattern in patterns for path in glob.glob(pattern))
        if not found:
            raise ArgumentError(
                "Dataset.list_files",
                found=f"no file matches {', '.join(patterns)}",
                rule="at least one file must match",
                remedy="check the pattern; append /* to list the files of a folder",
            )
        listed: Any = cls(indexed_sources.ListSource(tuple(os.fsencode(path) for path in found)))
        made: Self = listed.shuffle(len(found), seed) if shuffle or shuffle is None else listed
        return made

    @classmethod
    def from_text_lines(cls, filenames: files.FileNames | Steps, compression_type: str | None = None) -> Self:
        """Creates a dataset of the lines of text files, as bytes without line breaks.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        Example:
            >>> import os, pathlib, tempfile
            >>> from mirrored.data import TextLineDataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = pathlib.Path(folder.name, "lines.txt")
            >>> _ = path.write_text(os.linesep.join(["one", "two"]))
            >>> list(TextLineDataset(path))
            [b'one', b'two']
            >>> folder.cleanup()

        TensorFlow: `tf.data.TextLineDataset`.
        """
        return cls._from_files(filenames, files.read_line, compression_type, "TextLineDataset")

    @classmethod
    def from_tfrecords(cls, filenames: files.FileNames | Steps, compression_type: str | None = None) -> Self:
        """Creates a dataset of the records of TFRecord files, as bytes; verifies the checksums.

        Args:
            filenames: One path or several.
            compression_type: "", "GZIP" or "ZLIB".

        Example:
            >>> import tempfile
            >>> import mirrored.tf as tf
            >>> from mirrored.data import TFRecordDataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = f"{folder.name}/examples.tfrecord"
            >>> with tf.io.TFRecordWriter(path) as writer:
            ...     writer.write(b"an example")
            >>> list(TFRecordDataset(path))
            [b'an example']
            >>> folder.cleanup()

        TensorFlow: `tf.data.TFRecordDataset`.
        """
        return cls._from_files(filenames, files.read_tfrecord, compression_type, "TFRecordDataset")

    @classmethod
    def load(cls, path: str | os.PathLike[str], element_spec: object = None, compression: str | None = None) -> Self:
        """Creates a random-access dataset of the elements that `Dataset.save` has written to a folder.

        Args:
            path: The folder.
            element_spec: Ignored: the file contains it.
            compression: Ignored.

        Raises:
            DataFileError: The file does not exist or is damaged.

        TensorFlow: `tf.data.Dataset.load`.
        """
        del element_spec, compression
        return cls(storing.StoredSource(storing.Stored(path, "Dataset.load")))

    @classmethod
    def _from_files(
        cls, names: files.FileNames | Steps, read: Callable[..., Any], compression: str | None, called: str
    ) -> Self:
        packing = files.check_compression(compression, called)
        if isinstance(names, Steps):
            listing: Any = cls._of(names._node)
            opened: Self = listing.flat_map(lambda name: cls._from_files(name, read, packing, called))
            return opened
        return cls(files.FileSource(files.file_names(names, called), read, packing, called))


def _signature(types: PyTree, shapes: PyTree, signature: PyTree) -> Any:
    if signature is not None:
        return specs.as_spec(signature)
    if types is None or shapes is None:
        return None
    dtypes, treedef = tree_flatten(types)
    flat = jax.tree.leaves(shapes, is_leaf=lambda part: isinstance(part, list | tuple) and not _has_shapes(part))
    made = [
        specs.ArraySpec(tuple(shape), np.dtype(getattr(dtype, "name", dtype)))
        for dtype, shape in zip(dtypes, flat, strict=True)
    ]
    return treedef.unflatten(made)


def _typed(generator: Callable[..., Any], types: PyTree) -> Callable[..., Any]:
    """Wraps a generator function to cast the parts of its elements to dtypes, whatever their shapes."""
    dtypes, structure = tree_flatten(types)
    treedef: Any = structure.treedef

    @functools.wraps(generator)
    def elements(*args: Any) -> Iterator[Any]:
        for element in generator(*args):
            try:
                parts = treedef.flatten_up_to(element)
            except ValueError as error:
                raise StructureError(
                    "Dataset.from_generator",
                    found=f"an element has the structure {jax.tree.structure(element)}",
                    rule=f"elements must have the structure of output_types, {treedef}",
                    remedy="yield elements of this structure, or change output_types",
                ) from error
            yield structure.unflatten([_cast(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)])

    return elements


def _cast(part: Any, dtype: Any) -> Any:
    name = getattr(dtype, "name", dtype)
    if name in ("string", "bytes"):
        return part
    array, wanted = np.asarray(part), np.dtype(name)
    if array.size and array.dtype.kind == "f" and wanted.kind in "iu":
        raise StructureError(
            "Dataset.from_generator",
            found=f"a part of an element is {array.dtype.name}",
            rule=f"output_types requires {wanted.name}: real numbers are not converted to integers",
            remedy=f"yield integers, or pass output_types={array.dtype.name}",
        )
    if wanted.kind in "iu" and not keeps_values(array, wanted):
        raise StructureError(
            "Dataset.from_generator",
            found=f"a part of an element has numbers that {wanted.name} cannot represent, such as "
            f"{first_lost(array, wanted)}",
            rule=f"output_types requires {wanted.name}: a cast must not change values",
            remedy="yield numbers of this dtype, or pass a larger dtype in output_types",
        )
    return array.astype(wanted)


def _has_shapes(part: Iterable[Any]) -> bool:
    return any(isinstance(item, list | tuple) for item in part)
