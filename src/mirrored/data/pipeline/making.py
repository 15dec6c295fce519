"""The class methods of `Dataset` that create a dataset from arrays, generators or files."""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np

from mirrored._jax.arrays import is_key
from mirrored._jax.trees import Structure, tree_flatten
from mirrored._typing import DTypeLike, PyTree
from mirrored.data import specs
from mirrored.data.calling import Iterators, close_iterator
from mirrored.data.elements import as_element, first_lost, keeps_values
from mirrored.data.keys import as_records, implementation, record_dtype
from mirrored.data.options import AUTOTUNE
from mirrored.data.pipeline import files, indexed_sources, storing, streams
from mirrored.data.pipeline.steps import Steps, at_least
from mirrored.errors import ArgumentError, StructureError
from mirrored.values.tensor_shape import TensorShape


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

        After an interrupt (Ctrl-C) in `next`, an iterator of the dataset calls `generator` again and reads the elements
        since its last position again. From a live source (a queue, a socket) these would be new elements, which are
        dropped: end its dataset with ``.prefetch(n)``, whose thread goes on reading.

        Args:
            generator: Returns an iterable; called again for every iteration.
            output_types: A pytree of dtypes, to which elements are cast: TensorFlow's form before `output_signature`.
                Floats are not cast to integers. TensorFlow refuses Python's floats and truncates NumPy's.
            output_shapes: A pytree of shapes to go with `output_types`; None in it stands for any shape.
            args: Arguments of `generator`.
            output_signature: A pytree of specs (any objects with shape and dtype). Elements are cast to the dtypes; a
                different structure or shape raises an error. None: elements are not checked.

        Raises:
            ArgumentError: `output_types` has parts that are no dtypes, `output_shapes` is of another structure or
                without `output_types`, or both forms are given.
        """
        declared = _declared(output_types, output_shapes, output_signature)
        signature = None if declared is None else declared.spec
        make: Callable[[], Any] = functools.partial(generator, *args)
        if declared is not None and signature is None:
            make = _with_declared_spec(make, declared)
        return cls(streams.IterableSource(make, signature, "Dataset.from_generator"))

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
    def from_text_lines(
        cls,
        filenames: files.FileNames | Steps,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Creates a dataset of the lines of text files, as bytes without line breaks.

        Args:
            filenames: One path or several, or a dataset of paths.
            compression_type: "", "GZIP" or "ZLIB".
            buffer_size: Accepted for compatibility with TensorFlow and ignored.
            num_parallel_reads: Number of files that are open at a time: one line of each in turn, as in `interleave`.
                None or AUTOTUNE: one file after the other.
            name: Accepted for compatibility with TensorFlow and ignored.

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
        del buffer_size, name
        return cls._from_files(filenames, files.read_line, compression_type, "TextLineDataset", num_parallel_reads)

    @classmethod
    def from_tfrecords(
        cls,
        filenames: files.FileNames | Steps,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Creates a dataset of the records of TFRecord files, as bytes; verifies the checksums.

        Args:
            filenames: One path or several, or a dataset of paths.
            compression_type: "", "GZIP" or "ZLIB".
            buffer_size: Accepted for compatibility with TensorFlow and ignored.
            num_parallel_reads: Number of files that are open at a time: one record of each in turn, as in `interleave`.
                None or AUTOTUNE: one file after the other.
            name: Accepted for compatibility with TensorFlow and ignored.

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
        del buffer_size, name
        return cls._from_files(filenames, files.read_tfrecord, compression_type, "TFRecordDataset", num_parallel_reads)

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
        cls,
        names: files.FileNames | Steps,
        read: Callable[..., Any],
        compression: str | None,
        called: str,
        parallel: int | None = None,
    ) -> Self:
        packing = files.check_compression(compression, called)
        # With AUTOTUNE the order must not depend on the machine.
        cycle = 1 if parallel in (None, AUTOTUNE) else at_least(1, int(parallel), called, "num_parallel_reads")
        if isinstance(names, Steps):
            listing: Any = cls._of(names._node)
            opened: Self = listing.interleave(lambda name: cls._from_files(name, read, packing, called), cycle, 1)
            return opened
        return cls(files.FileSource(files.file_names(names, called), read, packing, called, cycle))


@dataclasses.dataclass(frozen=True)
class _Declared:
    """The declared dtypes, shapes and structure of the elements that a generator yields.

    Attributes:
        form: The argument that declares them.
        shape_form: The argument that declares their shapes.
        parts: The dtype and the shape of each part.
        structure: The structure of an element.
    """

    form: str
    shape_form: str
    parts: list[tuple[np.dtype[Any], TensorShape]]
    structure: Structure

    @property
    def spec(self) -> Any:
        """The spec of the elements; None if the rank of an array is unknown."""
        if any(shape.rank is None for _, shape in self.parts):
            return None
        return self.structure.unflatten([specs.ArraySpec(shape, dtype) for dtype, shape in self.parts])


def _declared(types: PyTree, shapes: PyTree, signature: PyTree) -> _Declared | None:
    others = [name for name, one in (("output_types", types), ("output_shapes", shapes)) if one is not None]
    if signature is None and not others:
        return None
    if signature is not None and others:
        found = f"output_signature and {' and '.join(others)}"
        raise _types_error(found, "output_signature contains the dtypes and shapes", " and ".join(others))
    if signature is None and types is None:
        raise _types_error("output_shapes without output_types", "shapes go with dtypes", "output_shapes")
    if signature is not None:
        given, structure = tree_flatten(signature, is_leaf=lambda part: hasattr(part, "shape"))
        others = [
            one for one in given if isinstance(one, type) or not (hasattr(one, "shape") and hasattr(one, "dtype"))
        ]
        if others:
            found, rule = f"output_signature contains {others[0]!r}", "output_signature is a pytree of specs"
            raise _types_error(found, rule, "output_types")
        parts = [(_dtype(one.dtype), TensorShape(one.shape)) for one in given]
        return _Declared("output_signature", "output_signature", parts, structure)
    given, structure = tree_flatten(types, is_leaf=lambda part: hasattr(part, "shape"))
    dtypes = [_dtype(one) for one in given]
    return _Declared("output_types", "output_shapes", _with_shapes(dtypes, shapes, structure), structure)


def _with_shapes(
    dtypes: list[np.dtype[Any]], shapes: PyTree, structure: Structure
) -> list[tuple[np.dtype[Any], TensorShape]]:
    treedef: Any = structure.treedef
    try:
        own = [None] * len(dtypes) if shapes is None else treedef.flatten_up_to(shapes)
    except ValueError:  # such as a list of shapes for a tuple of dtypes
        own = jax.tree.leaves(shapes, is_leaf=_is_shape)
    try:
        return [(dtype, TensorShape(shape)) for dtype, shape in zip(dtypes, own, strict=True)]
    except (TypeError, ValueError):
        rule = f"output_shapes has a shape for each part of output_types, {treedef}"
        raise _types_error(f"output_shapes={shapes!r}", rule, "output_types and output_shapes") from None


def _types_error(found: str, rule: str, name: str) -> ArgumentError:
    return ArgumentError(
        "Dataset.from_generator",
        found=found,
        rule=f"{rule}; the second and third positional arguments are output_types and output_shapes, as in TensorFlow",
        remedy=f"pass output_signature=..., a pytree of specs, without {name}; pass arguments of the generator as "
        "args=...",
    )


def _dtype(given: Any) -> np.dtype[Any]:
    is_spec = hasattr(given, "shape") and hasattr(given, "dtype") and not isinstance(given, type)
    name = given if is_spec or isinstance(given, np.dtype) else getattr(given, "name", given)
    if isinstance(name, str) and name in ("string", "bytes"):
        return np.dtype(object)
    try:
        dtype = None if is_spec or name is None else record_dtype(given) or np.dtype(name)
    except TypeError:
        dtype = None
    if dtype is None:
        raise _types_error(f"output_types contains {given!r}", "output_types is a pytree of dtypes", "output_types")
    return np.dtype(object) if dtype.kind in "SU" else dtype


def _with_declared_spec(make: Callable[[], Any], declared: _Declared) -> Callable[[], Iterator[Any]]:
    """Wraps a generator function to cast elements to declared dtypes and to check them against declared shapes.

    A spec has one number of dims, which is not known here.
    """
    treedef: Any = declared.structure.treedef
    # The dataset sees a new generator in each pass, so the iterator of the user is compared with the last one here.
    iterators = Iterators(make, "Dataset.from_generator")

    def elements() -> Iterator[Any]:
        iterator = iterators()
        try:
            for element in iterator:
                try:
                    parts = treedef.flatten_up_to(element)
                except ValueError as error:
                    raise StructureError(
                        "Dataset.from_generator",
                        found=f"an element has the structure {jax.tree.structure(element)}",
                        rule=f"elements must have the structure of {declared.form}, {treedef}",
                        remedy=f"yield elements of this structure, or change {declared.form}",
                    ) from error
                cast = [_cast(part, *own, declared) for part, own in zip(parts, declared.parts, strict=True)]
                yield declared.structure.unflatten(cast)
        finally:
            close_iterator(iterator)  # `iterators` keeps it, so that it would not be closed when this generator is

    return elements


def _cast(part: Any, wanted: np.dtype[Any], shape: TensorShape, declared: _Declared) -> Any:
    if wanted.hasobject and shape.rank is None:
        return part
    array, form = as_records(part) if is_key(part) else np.asarray(part), declared.form
    if not shape.is_compatible_with(array.shape):
        raise StructureError(
            "Dataset.from_generator",
            found=f"a part of an element has the shape {array.shape}",
            rule=f"{declared.shape_form} requires {tuple(shape)}",
            remedy=f"yield arrays of this shape, or put None into {declared.shape_form} for dims that vary",
        )
    if wanted.hasobject or is_key(part) or implementation(wanted) is not None:
        return part  # the dtypes of keys are compared later
    if array.size and array.dtype.kind == "f" and wanted.kind in "iu":
        raise StructureError(
            "Dataset.from_generator",
            found=f"a part of an element is {array.dtype.name}",
            rule=f"{form} requires {wanted.name}: real numbers are not converted to integers",
            remedy=f"yield integers, or put {array.dtype.name} into {form}",
        )
    if wanted.kind in "iu" and not keeps_values(array, wanted):
        raise StructureError(
            "Dataset.from_generator",
            found=f"a part of an element has numbers that {wanted.name} cannot represent, such as "
            f"{first_lost(array, wanted)}",
            rule=f"{form} requires {wanted.name}: a cast must not change values",
            remedy=f"yield numbers of this dtype, or put a larger dtype into {form}",
        )
    return array.astype(wanted)


def _is_shape(part: object) -> bool:
    return part is None or (isinstance(part, list | tuple) and not any(isinstance(one, list | tuple) for one in part))
