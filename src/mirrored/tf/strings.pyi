"""Type stub of `tf.strings`, written by tools/tf_stubs.py."""

from collections.abc import Sequence
from typing import Any

from numpy import ndarray

from mirrored._typing import DTypeLike
from mirrored.tf._data.host_arrays import HostArray

def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Any: ...
def bytes_split(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None
) -> HostArray: ...
def join(
    inputs: Sequence[str | bytes | Sequence[str | bytes] | ndarray[Any, Any]],
    separator: str | bytes = "",
    name: str | None = None,
) -> Any: ...
def length(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], unit: str = "BYTE", name: str | None = None
) -> HostArray: ...
def lower(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], encoding: str = "", name: str | None = None
) -> Any: ...
def reduce_join(
    inputs: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    separator: str | bytes = "",
    name: str | None = None,
) -> Any: ...
def regex_full_match(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], pattern: str | bytes, name: str | None = None
) -> HostArray: ...
def regex_replace(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    pattern: str | bytes,
    rewrite: str | bytes,
    replace_global: bool = True,
    name: str | None = None,
) -> Any: ...
def split(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    sep: str | bytes | None = None,
    maxsplit: int = -1,
    name: str | None = None,
) -> HostArray: ...
def strip(input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None) -> Any: ...
def substr(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    pos: int | Sequence[int] | ndarray[Any, Any],
    len: int | Sequence[int] | ndarray[Any, Any],
    unit: str = "BYTE",
    name: str | None = None,
) -> Any: ...
def to_number(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    out_type: DTypeLike = "float32",
    name: str | None = None,
) -> HostArray: ...
def unicode_split(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    input_encoding: str,
    errors: str = "replace",
    name: str | None = None,
) -> HostArray: ...
def upper(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], encoding: str = "", name: str | None = None
) -> Any: ...
