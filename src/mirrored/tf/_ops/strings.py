"""`tf.strings`: operations on texts in host memory, for input pipelines.

A text is a str, bytes, or a NumPy array of them; a result is `HostText` or `HostArray`. Texts cannot be on devices, so
these operations run as Python: in functions of `Dataset.map`, and while `tf.function` traces.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from mirrored._typing import DTypeLike, Operand
from mirrored.tf import _dtypes
from mirrored.tf._data.host_arrays import HostArray, Texts, as_bytes_array, on_host
from mirrored.tf._errors import InvalidArgumentError, UnimplementedError
from mirrored.tf._table import op

Whole: TypeAlias = int | Sequence[int] | np.ndarray[Any, Any]


def _each(function: Callable[..., Any], *texts: Any, dtype: Any = object) -> Any:
    """Applies a function elementwise to an array of strings, or to several arrays of the same shape."""
    first = texts[0]
    made = np.empty(first.shape, dtype)
    for place in np.ndindex(first.shape):
        made[place] = function(*(one[place] for one in texts))
    return on_host(made[()] if made.dtype == object else np.asarray(made))


def _argument_error(called: str, found: str, rule: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError.of(f"tf.strings.{called}", found=found, rule=rule, remedy=remedy)


# Parts of texts


@op("strings.split")
def split(input: Texts, sep: str | bytes | None = None, maxsplit: int = -1) -> HostArray:
    """Splits one text at a separator into an array of texts.

    Args:
        input: The text.
        sep: The separator; None or "" for runs of whitespace.
        maxsplit: The maximum number of splits; -1 for no limit.

    Raises:
        UnimplementedError: The input is an array of texts, whose parts would be a ragged tensor.

    TensorFlow: `tf.strings.split`.
    """
    text = _one(input, "split")
    separator = None if sep in (None, "", b"") else as_bytes_array(sep)[()]  # type: ignore[arg-type]
    return as_bytes_array(text.split(separator, maxsplit)).view(HostArray)


@op("strings.bytes_split")
def bytes_split(input: Texts) -> HostArray:
    """Splits one text into an array of its bytes.

    Raises:
        UnimplementedError: The input is an array of texts, whose parts would be a ragged tensor.
    """
    text = _one(input, "bytes_split")
    return as_bytes_array([text[place : place + 1] for place in range(len(text))]).view(HostArray)


@op("strings.unicode_split")
def unicode_split(input: Texts, input_encoding: str, errors: str = "replace") -> HostArray:
    """Splits one text into an array of its characters, encoded as UTF-8.

    Raises:
        UnimplementedError: The input is an array of texts, whose parts would be a ragged tensor.
    """
    return as_bytes_array(list(_one(input, "unicode_split").decode(input_encoding, errors))).view(HostArray)


def _one(texts: Texts, called: str) -> bytes:
    array = as_bytes_array(texts)
    if array.ndim:
        raise UnimplementedError.of(
            f"tf.strings.{called}",
            found=f"the input is an array of texts of shape {array.shape}",
            rule="the parts of several texts are ragged, and there are no ragged tensors",
            remedy="split one text at a time: in Dataset.map before batch",
        )
    return bytes(array[()])


@op("strings.substr")
def substr(input: Texts, pos: Whole, len: Whole, unit: str = "BYTE") -> Any:
    """Returns substrings of `len` bytes or characters from `pos`; a negative `pos` counts from the end.

    Args:
        input: The texts.
        pos: The position of the first byte or character, one for all or one per text.
        len: The number of bytes or characters; a negative number means to the end.
        unit: Whether to count bytes or characters of UTF-8.

    Raises:
        InvalidArgumentError: A position is outside of its text.
    """
    whole = np.broadcast_arrays(as_bytes_array(input), np.asarray(pos), np.asarray(len))

    def part(text: bytes, start: int, count: int) -> bytes:
        units: Any = text.decode() if _is_characters(unit, "substr") else text
        size = units.__len__()
        if not -size <= start <= size:
            raise _argument_error(
                "substr",
                f"pos {start} out of range for string {text!r}",
                "a position must be within its text",
                "pass a position within the text",
            )
        first = start + size if start < 0 else start
        taken = units[first:] if count < 0 else units[first : first + count]
        return taken.encode() if isinstance(taken, str) else taken

    return _each(part, *whole)


@op("strings.length")
def length(input: Texts, unit: str = "BYTE") -> HostArray:
    """Returns the length of each text as int32, in bytes or in UTF-8 characters."""
    characters = _is_characters(unit, "length")
    made: HostArray = _each(
        lambda text: len(text.decode() if characters else text), as_bytes_array(input), dtype=np.int32
    )
    return made


def _is_characters(unit: str, called: str) -> bool:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise _argument_error(
            called, f"unit={unit!r}", 'the unit must be "BYTE" or "UTF8_CHAR"', 'pass "BYTE" or "UTF8_CHAR"'
        )
    return unit == "UTF8_CHAR"


# Changed texts


@op("strings.lower")
def lower(input: Texts, encoding: str = "") -> Any:
    """Converts texts to lower case: ASCII letters, or all letters with ``encoding="utf-8"``."""
    return _each(lambda text: text.decode().lower().encode() if encoding else text.lower(), as_bytes_array(input))


@op("strings.upper")
def upper(input: Texts, encoding: str = "") -> Any:
    """Converts texts to upper case: ASCII letters, or all letters with ``encoding="utf-8"``."""
    return _each(lambda text: text.decode().upper().encode() if encoding else text.upper(), as_bytes_array(input))


@op("strings.strip")
def strip(input: Texts) -> Any:
    """Removes whitespace at both ends of texts."""
    return _each(bytes.strip, as_bytes_array(input))


@op("strings.regex_replace")
def regex_replace(input: Texts, pattern: str | bytes, rewrite: str | bytes, replace_global: bool = True) -> Any:
    r"""Replaces the matches of a pattern in texts.

    Args:
        input: The texts.
        pattern: A regular expression.
        rewrite: The replacement, in which ``\1`` is the first group and ``\0`` the whole match.
        replace_global: Whether to replace all matches, or the first only.

    Raises:
        InvalidArgumentError: The pattern is malformed.

    Example:
        >>> import mirrored.tf as tf
        >>> tf.strings.regex_replace("hello, world", "[,.!]", "")
        b'hello world'

    TensorFlow: `tf.strings.regex_replace`, with the syntax of Python's `re` instead of RE2, and its ASCII classes.
    """
    expression = _compiled(pattern, "regex_replace")
    template = re.sub(r"\\(\d)", r"\\g<\1>", _text(rewrite))

    def replaced(text: bytes) -> bytes:
        last_end = -1

        def replacement(match: re.Match[str]) -> str:
            nonlocal last_end
            adjacent = match.start() == match.end() == last_end  # RE2 has no empty match right after a match
            last_end = match.end()
            return "" if adjacent else match.expand(template)

        changed = expression.sub(replacement, _text(text), count=0 if replace_global else 1)
        return changed.encode("utf-8", "surrogateescape")

    return _each(replaced, as_bytes_array(input))


@op("strings.regex_full_match")
def regex_full_match(input: Texts, pattern: str | bytes) -> HostArray:
    """Returns whether each text as a whole matches a pattern; see `regex_replace` for the syntax.

    Raises:
        InvalidArgumentError: The pattern is malformed.
    """
    expression = _compiled(pattern, "regex_full_match")
    made: HostArray = _each(
        lambda text: expression.fullmatch(_text(text)) is not None, as_bytes_array(input), dtype=np.bool_
    )
    return made


_POSIX: Final = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": re.escape(string.punctuation),
    "space": r"\s",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}


def _compiled(pattern: str | bytes, called: str) -> re.Pattern[str]:
    text = re.sub(r"\[:([a-z]+):\]", lambda found: _POSIX.get(found[1], found[0]), _text(pattern))
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise _argument_error(
            called,
            f"Invalid pattern: {pattern!r}, error: {error}",
            "the pattern must be a regular expression in the syntax of Python's re",
            "correct the pattern",
        ) from None


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")


# Joined texts


@op("strings.join")
def join(inputs: Sequence[Texts], separator: str | bytes = "") -> Any:
    """Joins the corresponding elements of several arrays of texts; single texts are broadcast to the arrays' shape.

    Raises:
        InvalidArgumentError: The arrays have different shapes.
    """
    between = _one(separator, "join")
    arrays = [as_bytes_array(one) for one in inputs]
    shapes = {one.shape for one in arrays if one.ndim}
    if len(shapes) > 1:
        raise _argument_error(
            "join",
            f"Input shapes do not match: {' vs. '.join(map(str, sorted(shapes)))}",
            "arrays of texts must have the same shape",
            "pass arrays of one shape, or single texts",
        )
    if not arrays:
        return on_host(b"")
    return _each(lambda *parts: between.join(parts), *np.broadcast_arrays(*arrays))


@op("strings.reduce_join")
def reduce_join(
    inputs: Texts, axis: int | Sequence[int] | None = None, keepdims: bool = False, separator: str | bytes = ""
) -> Any:
    """Joins the texts of an array along the given axes; joins all texts in row-major order if `axis` is None."""
    array, between = as_bytes_array(inputs), _one(separator, "reduce_join")
    axes = range(array.ndim)[::-1] if axis is None else [axis] if isinstance(axis, int) else axis
    if any(not -array.ndim <= one < array.ndim for one in axes):
        raise _argument_error(
            "reduce_join",
            f"axis={axis} was passed for texts of shape {array.shape}",
            "an axis must be one of the texts' axes",
            f"pass numbers from {-array.ndim} to {array.ndim - 1}",
        )
    order = [one % array.ndim for one in axes][::-1]  # texts along the first of the axes are neighbors in the result
    kept = [one for one in range(array.ndim) if one not in order]
    rows = array.transpose([*kept, *order]).reshape([array.shape[one] for one in kept] + [-1])
    made = np.empty(rows.shape[:-1], object)
    for place in np.ndindex(made.shape):
        made[place] = between.join(rows[place])
    shape = [1 if one in order else array.shape[one] for one in range(array.ndim)] if keepdims else made.shape
    return on_host(made.reshape(shape)[()])


# Texts and numbers


@op("strings.to_number")
def to_number(input: Texts, out_type: DTypeLike = "float32") -> HostArray:
    """Converts texts to numbers.

    Args:
        input: The texts.
        out_type: The dtype: float32, float64, int32 or int64.

    Raises:
        InvalidArgumentError: A text is not a number of this dtype.
    """
    wanted = _dtypes.as_dtype(out_type).as_numpy_dtype
    dtype = np.dtype(wanted)

    def number(text: bytes) -> Any:
        try:
            if b"_" in text:  # Python's separator of digits
                raise ValueError
            if dtype.kind == "i":
                value = int(text)
                if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                    raise ValueError
                return value
            return float.fromhex(_text(text)) if b"x" in text.lower() else float(text)
        except ValueError:
            raise _argument_error(
                "to_number",
                f"could not correctly convert string: {text!r}",
                f"every text must be a number of dtype {dtype}",
                "clean the texts first, or pass another out_type",
            ) from None

    made: HostArray = _each(number, as_bytes_array(input), dtype=dtype)
    return made


@op("strings.as_string as_string")
def as_string(
    input: Operand,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
) -> Any:
    """Converts numbers and booleans to texts.

    Args:
        input: The numbers.
        precision: The number of digits after the decimal point; -1 for 6.
        scientific: Whether to write an exponent.
        shortest: Whether to write the shorter of both forms.
        width: The minimum width; -1 for none.
        fill: ``"0"``, ``" "`` or ``"-"`` (which aligns to the left) to fill up to the width.

    TensorFlow: `tf.strings.as_string`.
    """
    array = np.asarray(input)
    kind = "e" if scientific else "g" if shortest else "f"
    size = "" if width < 0 else str(width)
    digits = "" if precision < 0 else f".{precision}"

    def text(value: Any) -> bytes:
        if isinstance(value, (bool, np.bool_)):
            return b"true" if value else b"false"
        if isinstance(value, (int, np.integer)):
            return (f"%{fill}{size}d" % value).encode()
        form = f"%{fill}{size}{digits}{kind}"
        if isinstance(value, (complex, np.complexfloating)):
            return f"({form % value.real},{form % value.imag})".encode()
        written: str = form % value
        return written.encode()

    return _each(text, array)
