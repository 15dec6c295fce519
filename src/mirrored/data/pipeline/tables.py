"""The class methods of `Dataset` that read CSV files."""

from __future__ import annotations

import dataclasses
import glob
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Self

from mirrored.data.options import AUTOTUNE
from mirrored.data.pipeline import csv, files
from mirrored.data.pipeline.steps import Steps
from mirrored.errors import ArgumentError, StructureError


class Tables(Steps):
    """Mixin of `Dataset`: the class methods that read CSV files."""

    @classmethod
    def from_csv(
        cls,
        filenames: files.FileNames | Steps,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
    ) -> Self:
        """Creates a dataset with one tuple of scalars per line of CSV files; texts are bytes.

        Args:
            filenames: One path or several, or a dataset of paths.
            record_defaults: For every column that is read, a default value, or a dtype if every field must have a
                value.
            compression_type: "", "GZIP" or "ZLIB".
            buffer_size: Accepted for compatibility with TensorFlow and ignored.
            header: Whether to skip the first line of every file.
            field_delim: The separator between fields.
            use_quote_delim: Whether double quotes can enclose fields.
            na_value: The marker of a missing value, in addition to an empty field.
            select_cols: The indices of the columns to read, in increasing order.
            exclude_cols: The indices of the columns to omit.

        Raises:
            ArgumentError: The column arguments are inconsistent.
            StructureError: While reading: a line or a field cannot be parsed.

        TensorFlow: `tf.data.experimental.CsvDataset`. Here empty lines are skipped.
        """
        called = "CsvDataset"
        columns = tuple(csv.Column.of(given) for given in record_defaults)
        fields, count = _wanted_fields(select_cols, exclude_cols, len(columns), called)
        form = csv.Format(field_delim, use_quote_delim, na_value, fields, count)
        lines = cls._csv_lines(
            filenames, compression_type, csv.ReadRecord(header, use_quote_delim, field_delim), called
        )
        return cls(csv.CsvRows(lines._node, form, columns))

    @classmethod
    def _csv_lines(
        cls, names: files.FileNames | Steps, compression: str | None, read: csv.ReadRecord, called: str
    ) -> Self:
        made: Self = cls._from_files(names, read, compression, called)  # type: ignore[attr-defined]
        return made

    @classmethod
    def csv_batches(
        cls,
        file_pattern: files.FileNames,
        batch_size: int,
        column_names: Sequence[str] | None = None,
        column_defaults: Sequence[Any] | None = None,
        label_name: str | None = None,
        select_columns: Sequence[Any] | None = None,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        header: bool = True,
        num_epochs: int | None = None,
        shuffle: bool = True,
        shuffle_buffer_size: int = 10000,
        shuffle_seed: int | None = None,
        prefetch_buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        sloppy: bool = False,
        num_rows_for_inference: int | None = 100,
        compression_type: str | None = None,
        ignore_errors: bool = False,
        encoding: str = "utf-8",
    ) -> Self:
        """Creates a dataset of batches from CSV files: dicts from column name to array, or pairs with a label array.

        Args:
            file_pattern: Paths or glob patterns, one or several.
            batch_size: Number of rows per batch. Batches can cross epoch boundaries.
            column_names: The names of the columns; by default the header, which all files must share.
            column_defaults: For every column that is read, a default value, or a dtype if every field must have a
                value. None: inferred from the first rows of all files, with 0 and "" as defaults.
            label_name: The name of the label column.
            select_columns: Names or indices of the columns to read; all by default.
            field_delim: The separator between fields.
            use_quote_delim: Whether double quotes can enclose fields.
            na_value: The marker of a missing value, in addition to an empty field.
            header: Whether files start with a line of column names.
            num_epochs: Number of times to read the data; None: indefinitely, and all batches are full.
            shuffle: Whether to shuffle files and rows.
            shuffle_buffer_size: Size of the shuffle buffer for rows.
            shuffle_seed: An int; random if None.
            prefetch_buffer_size: Number of batches to prefetch.
            num_parallel_reads: Number of files to interleave; 1 by default.
            sloppy: Accepted for compatibility with TensorFlow and ignored; the order is always deterministic.
            num_rows_for_inference: Number of rows from which dtypes are inferred; None: all.
            compression_type: "", "GZIP" or "ZLIB".
            ignore_errors: Whether to drop rows that cannot be parsed.
            encoding: Only "utf-8" is supported.

        Raises:
            ArgumentError: No file matches, or the column arguments are inconsistent.

        TensorFlow: `tf.data.experimental.make_csv_dataset`.
        """
        called = "make_csv_dataset"
        _check_encoding(encoding, called)
        files = _matching(file_pattern, called)
        form = csv.Format(field_delim, use_quote_delim, na_value)
        head = _Head(files, form, header, compression_type, num_rows_for_inference, ignore_errors, called)
        names = list(column_names) if column_names is not None else head.names()
        places = _places(select_columns, names, called)
        chosen = [names[place] for place in places]
        if label_name is not None and label_name not in chosen:
            raise ArgumentError(
                called,
                found=f"label_name={label_name!r} is not a column that is read",
                rule=f"label_name must be one of the columns {chosen}",
                remedy="pass the name of one of these columns",
            )
        columns = _columns(column_defaults, head, places, called)
        lines: Any = cls._file_lines(
            files,
            compression_type,
            csv.ReadRecord(header, use_quote_delim, field_delim),
            shuffle,
            shuffle_seed,
            num_parallel_reads or 1,
            called,
        )
        whole = csv.Format(field_delim, use_quote_delim, na_value, tuple(places), len(names))
        if ignore_errors:
            lines = lines.filter(csv.Readable(whole, tuple(columns)))
        if shuffle:
            lines = lines.shuffle(shuffle_buffer_size, shuffle_seed)
        batches = lines.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None)
        made = cls(csv.CsvBatches(batches.node, whole, dict(zip(chosen, columns, strict=True)), label_name))
        ahead: Self = made.prefetch(AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size)  # type: ignore[attr-defined]
        return ahead

    @classmethod
    def _file_lines(
        cls,
        files: list[str],
        compression: str | None,
        read: csv.ReadRecord,
        shuffle: bool,
        seed: int | None,
        parallel: int,
        called: str,
    ) -> Any:
        if len(files) == 1 or (parallel == 1 and not shuffle):
            return cls._csv_lines(files, compression, read, called)
        names: Any = cls.from_tensor_slices(files)  # type: ignore[attr-defined]
        if shuffle:
            names = names.shuffle(len(files), seed)
        return names.interleave(lambda name: cls._csv_lines(name, compression, read, called), cycle_length=parallel)


class _Head:
    """Reads the start of CSV files: column names, and rows from which dtypes are inferred."""

    def __init__(
        self,
        paths: Sequence[str],
        form: csv.Format,
        header: bool,
        compression: str | None,
        rows: int | None,
        ignores_errors: bool,
        called: str,
    ) -> None:
        self._paths, self._form, self._header, self._rows = paths, form, header, rows
        self._compression, self._called = files.check_compression(compression, called), called
        self._ignores_errors = ignores_errors

    def names(self) -> list[str]:
        """Returns the column names in the first line of the files.

        Raises:
            ArgumentError: The files have no header, or different ones.
        """
        form = dataclasses.replace(self._form, missing="")  # a column can have the name of the marker
        found: list[str] | None = None
        for path in self._paths if self._header else ():
            for line in itertools.islice(self._lines(path, skip=False), 1):
                names = form.texts(line)
                if found is None:
                    found = names
                elif names != found:
                    raise ArgumentError(
                        self._called,
                        found=f"{self._paths[0]} has the columns {found}, {path} has {names}",
                        rule="all files must have the same header",
                        remedy="pass column_names if the columns are the same, or read the files as separate datasets",
                    )
        if found is None:
            raise ArgumentError(
                self._called,
                found=f"header={self._header} and no column_names, for {self._paths[0]}",
                rule="column names must come from the header or from column_names",
                remedy="pass column_names",
            )
        return found

    def columns(self, places: Sequence[int]) -> list[csv.Column]:
        """Infers the dtypes of the columns from the first rows, which can be in several files."""
        rows = list(itertools.islice(self._row_texts(), self._rows))
        return [csv.inferred([row[place] for row in rows if place < len(row)]) for place in places]

    def _row_texts(self) -> Iterator[list[str]]:
        for path in self._paths:
            for line in self._lines(path, skip=self._header):
                try:
                    yield self._form.texts(line)
                except StructureError:
                    if not self._ignores_errors:
                        raise

    def _lines(self, path: str, skip: bool) -> Iterator[bytes]:
        read = csv.ReadRecord(skip, self._form.quotes, self._form.delimiter)
        with files.open_file(path, self._compression, self._called) as file:
            for number in itertools.count():
                line = read(file, path, number)
                if line is None:
                    return
                yield line


def _check_encoding(encoding: str, called: str) -> None:
    if encoding.lower().replace("-", "") != "utf8":
        raise ArgumentError(
            called,
            found=f"encoding={encoding!r}",
            rule="encoding must be UTF-8",
            remedy="convert the file first, or read it with pandas and use Dataset.from_tensor_slices(dict(frame))",
        )


def _matching(file_pattern: files.FileNames, called: str) -> list[str]:
    patterns = files.file_names(file_pattern, called)
    found = sorted({path for pattern in patterns for path in glob.glob(pattern)})
    if not found:
        raise ArgumentError(
            called,
            found=f"no file matches {', '.join(patterns)}",
            rule="at least one file must match",
            remedy="check the pattern; append /* to read the files of a folder",
        )
    return found


def _places(select: Sequence[Any] | None, names: list[str], called: str) -> list[int]:
    if len(set(names)) != len(names):
        raise ArgumentError(
            called,
            found=f"a name occurs twice in {names}",
            rule="column names must be unique",
            remedy="pass unique column_names",
        )
    if select is None:
        return list(range(len(names)))
    unknown = [one for one in select if (one not in names if isinstance(one, str) else not 0 <= one < len(names))]
    if unknown:
        raise ArgumentError(
            called,
            found=f"select_columns={list(select)} contains {unknown}",
            rule=f"select_columns must be names or indices of the columns {names}",
            remedy=f"omit {unknown} from select_columns",
        )
    return sorted({names.index(one) if isinstance(one, str) else int(one) for one in select})


def _columns(defaults: Sequence[Any] | None, head: _Head, places: list[int], called: str) -> list[csv.Column]:
    if defaults is None:
        return head.columns(places)
    if len(defaults) != len(places):
        raise ArgumentError(
            called,
            found=f"{len(defaults)} column_defaults were passed for {len(places)} columns",
            rule="column_defaults must have a default or a dtype for every column that is read",
            remedy="pass one for each column, in the order of the file",
        )
    return [csv.Column.of(given) for given in defaults]


def _wanted_fields(
    select: Sequence[int] | None, exclude: Sequence[int] | None, count: int, called: str
) -> tuple[tuple[int, ...] | None, int | None]:
    """Returns the indices of the fields to read (None: all), and the required number of fields (None: any)."""
    chosen = list(select) if select is not None else None
    if chosen is not None and exclude is not None:
        rule = "only one of select_cols and exclude_cols can be given"
    elif chosen is not None and (sorted(set(chosen)) != chosen or len(chosen) != count):
        rule = f"select_cols must be increasing, with one index for each of the {count} record_defaults"
    elif chosen is not None:
        return tuple(chosen), None
    elif exclude is not None:
        left_out = set(exclude)
        total = count + len(left_out)
        return tuple(place for place in range(total) if place not in left_out), total
    else:
        return None, count
    raise ArgumentError(
        called,
        found=f"select_cols={select}, exclude_cols={exclude}",
        rule=rule,
        remedy="pass the indices of the columns to read as select_cols, in increasing order",
    )
