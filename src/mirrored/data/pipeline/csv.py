"""CSV parsing: reads records from files, splits them into fields, and converts the fields to arrays."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import numpy as np

from mirrored.data.elements import Element
from mirrored.data.extra import engine
from mirrored.data.pipeline.files import without_break
from mirrored.data.pipeline.nodes import Run
from mirrored.data.pipeline.streams import StreamStep
from mirrored.data.specs import ArraySpec
from mirrored.errors import ArgumentError, StructureError

_TEXT: Final = np.dtype(object)
_KINDS: Final = ("int32", "int64", "float32", "float64", "object")


@dataclasses.dataclass(frozen=True)
class Column:
    """The dtype of a CSV column, and the default value for its empty fields.

    Attributes:
        dtype: The dtype of the values; object for bytes.
        default: The value of an empty field; None if every field must have a value.
    """

    dtype: np.dtype[Any]
    default: Any

    @classmethod
    def of(cls, given: object) -> Column:
        """Creates a column from a dtype (empty fields are then errors) or from a default value for empty fields.

        Raises:
            ArgumentError: `given` is neither.
        """
        kind = _dtype_of(given)
        if kind is not None:
            return cls(kind, None)
        # An array of bytes would lose NUL characters at their ends.
        array = np.asarray(given, object) if isinstance(given, str | bytes) else np.asarray(given)
        dtype = _default_dtype(given, array)
        if array.size > 1 or dtype.name not in _KINDS:
            raise ArgumentError(
                "record_defaults",
                found=f"{given!r} is neither a supported default nor a supported dtype",
                rule="a column must have a default or dtype that is int32, int64, float32, float64 or string",
                remedy="pass one number, string or dtype per column",
            )
        if array.size == 0:
            return cls(dtype, None)
        value = array.reshape(())[()]
        return cls(dtype, _bytes(value) if dtype == _TEXT else dtype.type(value))

    def value(self, text: str, place: str) -> Any:
        """Converts the text of one CSV field to a value of the column's dtype.

        Raises:
            StructureError: The text is not valid for the dtype, or it is empty and the column has no default.
        """
        if not text:
            if self.default is None:
                raise _field_error(place, "is empty, and the column has no default")
            return self.default
        if self.dtype == _TEXT:
            return text.encode()
        try:
            return self._number(text)
        except (ValueError, OverflowError):
            raise _field_error(place, f"is not a valid {self.dtype}: {text!r}") from None

    def _number(self, text: str) -> Any:
        number: Any = _number(text, self.dtype.kind == "f")
        if self.dtype.kind == "i" and not np.iinfo(self.dtype).min <= number <= np.iinfo(self.dtype).max:
            raise OverflowError
        return self.dtype.type(number)


def _number(text: str, floating: bool) -> int | float:
    """Parses a number as TensorFlow does: accepts only ASCII digits, and rejects Python's ``_`` between digits.

    Raises:
        ValueError: The text is not a number.
    """
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text) if floating else int(text)


def _dtype_of(given: Any) -> np.dtype[Any] | None:
    name: Any = getattr(given, "name", None)
    if name == "string" or any(given is one for one in (str, bytes, object)):
        return _TEXT
    if given is int or given is float:
        return np.dtype(np.int32 if given is int else np.float32)
    if isinstance(given, np.dtype | type) or (name is not None and hasattr(given, "as_numpy_dtype")):
        made: np.dtype[Any] = np.dtype(given)
        return made
    return None


def _default_dtype(given: object, array: np.ndarray) -> np.dtype[Any]:
    if array.dtype.kind in "USO":
        return _TEXT
    if isinstance(given, int | float | list | tuple):
        # As in TensorFlow, a default that does not fit into 32 bits makes the column int64.
        if array.dtype.kind in "iu" and not np.array_equal(array, array.astype(np.int32)):
            return array.dtype
        return np.dtype(np.float32 if array.dtype.kind == "f" else np.int32)
    return array.dtype


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _field_error(place: str, found: str) -> StructureError:
    return StructureError(
        "CSV",
        found=f"{place} {found}",
        rule="every field of a column must have the form of the column's dtype, or be empty if it has a default",
        remedy="give the column another dtype or a default, or pass the marker of missing values as na_value",
    )


@dataclasses.dataclass(frozen=True)
class Format:
    """The format of CSV lines: delimiter, quoting, marker of missing values, and the selected fields.

    Attributes:
        delimiter: The separator between fields.
        quotes: Whether ``"`` can enclose a field.
        missing: The marker of a missing value, in addition to an empty field.
        fields: The indices of the selected fields; None for all.
        count: The required number of fields per line; None for any.
    """

    delimiter: str = ","
    quotes: bool = True
    missing: str = ""
    fields: tuple[int, ...] | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ArgumentError(
                "CSV",
                found=f"field_delim={self.delimiter!r}",
                rule="the delimiter must be one character, and neither a quote nor a line break",
                remedy='pass one character, such as "," or "\\t"',
            )

    def texts(self, line: bytes) -> list[str]:
        """Splits a CSV line and returns the texts of the selected fields; "" stands for a missing value.

        Raises:
            StructureError: The line has the wrong number of fields, or an unterminated quote.
        """
        found = self._split(line)
        wanted = self.fields if self.fields is not None else range(len(found) if self.count is None else self.count)
        if (self.count is not None and len(found) != self.count) or any(place >= len(found) for place in wanted):
            needed = self.count if self.count is not None else max(wanted) + 1
            raise _line_error(line, f"{len(found)} fields instead of {needed}")
        return ["" if found[place] == self.missing else found[place] for place in wanted]

    def _split(self, line: bytes) -> list[str]:
        # Python's csv.reader limits the size of fields, by a setting of the process.
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise _line_error(line, f"{error}") from error
        if not self.quotes or '"' not in text:
            text = text.rstrip("\r\n")
            if "\n" in text or "\r" in text:
                raise _line_error(line, "a line break outside of quotes")
            return text.split(self.delimiter)
        line_grammar, field_grammar = self._grammars
        preceded = self.delimiter + text
        if not line_grammar.fullmatch(preceded):
            if ends_inside_quotes(line, self.delimiter.encode()):
                raise _line_error(line, "unexpected end of data in a quoted field")
            raise _line_error(
                line,
                "a quote inside a field that does not begin with one, text after a closing quote, or a line break "
                "outside of quotes",
            )
        return [quoted.replace('""', '"') or plain for quoted, plain in field_grammar.findall(preceded)]

    @functools.cached_property
    def _grammars(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """The regular expressions for a line, and for a field with the delimiter before it.

        Quotes enclose fields or are doubled, as TensorFlow requires.
        """
        separator = re.escape(self.delimiter)
        field = f'{separator}(?:"([^"]*(?:""[^"]*)*)"|([^"\r\n{separator}]*))'
        return re.compile(f"(?:{field})+[\r\n]*"), re.compile(field)


def _line_error(line: bytes, found: str) -> StructureError:
    return StructureError(
        "CSV",
        found=f"{found}, in the line {line[:80]!r}",
        rule="all lines must have the same fields and the same quoting",
        remedy="check field_delim and use_quote_delim, or omit the columns with select_cols",
    )


def columns_of(lines: Sequence[bytes], form: Format, columns: Sequence[Column]) -> list[Any]:
    """Parses CSV lines, and returns one array per column.

    Raises:
        StructureError: A line or a value cannot be parsed.
    """
    rows = [form.texts(line) for line in lines]
    made = []
    for place, column in enumerate(columns):
        values = [column.value(row[place], f"field {place} of row {number}") for number, row in enumerate(rows)]
        array = np.empty(len(values), column.dtype)
        array[:] = values
        made.append(array)
    return made


@dataclasses.dataclass(frozen=True)
class Readable:
    """A predicate for `Dataset.filter`: returns whether a CSV line can be parsed."""

    form: Format
    columns: tuple[Column, ...]

    def __call__(self, line: bytes) -> bool:
        try:
            columns_of([line], self.form, self.columns)
        except StructureError:
            return False
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class CsvRows(StreamStep):
    """The operation that parses each CSV line of a dataset into a tuple of values."""

    form: Format
    columns: tuple[Column, ...]

    @property
    def spec(self) -> Any:
        return tuple(ArraySpec((), column.dtype) for column in self.columns)

    def stream(self, run: Run) -> Any:
        return engine().map_with_index(self.parent.stream(run), self._row)

    def _row(self, index: int, line: bytes) -> Element:
        texts = self.form.texts(line)
        return tuple(
            column.value(text, f"field {place} of record {index}")
            for place, (column, text) in enumerate(zip(self.columns, texts, strict=True))
        )


@dataclasses.dataclass(frozen=True, eq=False)
class CsvBatches(StreamStep):
    """The operation that parses batches of CSV lines into dicts of columns, or pairs (dict, label column).

    Attributes:
        form: How lines are split into fields.
        columns: The columns by name.
        label: The name of the label column, or None.
    """

    form: Format
    columns: dict[str, Column]
    label: str | None

    @property
    def spec(self) -> Any:
        size = self.parent.spec.shape[0]
        return self._with_label([ArraySpec((size,), column.dtype) for column in self.columns.values()])

    def stream(self, run: Run) -> Any:
        return engine().map_with_index(self.parent.stream(run), self._batch)

    def _batch(self, _: int, lines: Iterable[Any]) -> Element:
        return self._with_label(columns_of(list(lines), self.form, list(self.columns.values())))

    def _with_label(self, values: Sequence[Any]) -> Any:
        # JAX sorts the keys of a plain dict when it flattens one; an OrderedDict keeps the column order.
        named = OrderedDict(zip(self.columns, values, strict=True))
        return named if self.label is None else (named, named.pop(self.label))


def ends_inside_quotes(line: bytes, delimiter: bytes, inside: bool = False) -> bool:
    """Returns whether a line ends inside a quoted field, i.e. whether its CSV record continues on the next line.

    Only a quote at the beginning of a field opens it: a stray quote in another field adds no lines to the record.

    Args:
        line: The line, with its line break.
        delimiter: The separator between fields.
        inside: Whether the line begins inside of a quoted field.

    Source: the parser of TensorFlow's `CsvDataset`.
    """
    place = 0
    while True:
        if not inside:
            if not line.startswith(b'"', place):
                place = line.find(delimiter, place)
                if place < 0:
                    return False
                place += len(delimiter)
                continue
            place += 1
        place = line.find(b'"', place)
        if place < 0:
            return True
        if line[place + 1 : place + 2] in (b"", b"\r", b"\n"):
            return False
        inside = not line.startswith(delimiter, place + 1)
        place += 2 if inside else 1 + len(delimiter)  # a doubled quote, or one that `Format` refuses, closes no field


@dataclasses.dataclass(frozen=True)
class ReadRecord:
    """A callable that reads the next CSV record from a file; quoted fields may contain line breaks.

    Attributes:
        header: Whether to skip the first line.
        quotes: Whether quoted fields can contain line breaks.
        delimiter: The separator between fields.
    """

    header: bool
    quotes: bool
    delimiter: str

    def __call__(self, file: IO[bytes], path: str, record: int) -> bytes | None:
        if self.header and record == 0:
            self._read(file)
        line = self._read(file)
        while line == b"":  # skips empty lines, which many files have at their end
            line = self._read(file)
        return line

    def _read(self, file: IO[bytes]) -> bytes | None:
        line = file.readline()
        if self.quotes and b'"' in line and ends_inside_quotes(line, delimiter := self.delimiter.encode()):
            lines = [line]
            while more := file.readline():
                lines.append(more)  # with the line break that the field contains
                if b'"' in more and not ends_inside_quotes(more, delimiter, inside=True):
                    break
            line = b"".join(lines)
        return without_break(line) if line else None


def inferred(texts: Sequence[str]) -> Column:
    """Returns a `Column` of the narrowest dtype that fits all texts: int32, int64, float32, float64 or string.

    Empty texts are ignored.

    Source: the inference of TensorFlow's `make_csv_dataset`.
    """
    kinds = [kind for kind in map(_kind, texts) if kind is not None]
    dtype = np.dtype(_KINDS[max(kinds)] if kinds else object)
    return Column(dtype, b"" if dtype == _TEXT else dtype.type(0))


def _kind(text: str) -> int | None:
    if not text:
        return None
    for place, name in enumerate(_KINDS[:2]):
        try:
            if np.iinfo(name).min <= _number(text, floating=False) <= np.iinfo(name).max:
                return place
        except ValueError:
            break
    try:
        number = _number(text, floating=True)
    except ValueError:
        return 4
    if np.isnan(number):
        return 4
    return next((place for place in (2, 3) if abs(number) <= float(np.finfo(_KINDS[place]).max)), 4)
