"""Type stub of `tf.io`, written by tools/tf_stubs.py."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from numpy import ndarray

from mirrored._typing import DTypeLike
from mirrored.tf._data.parsing import FixedLenFeature as FixedLenFeature
from mirrored.tf._data.parsing import FixedLenSequenceFeature as FixedLenSequenceFeature
from mirrored.tf._io.files import TFRecordOptions as TFRecordOptions
from mirrored.tf._io.files import TFRecordWriter as TFRecordWriter
from mirrored.tf.io import gfile as gfile

def decode_and_crop_jpeg(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    crop_window: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Any: ...
def decode_base64(input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None) -> Any: ...
def decode_bmp(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    channels: int = 0,
    name: str | None = None,
    *,
    dtype: DTypeLike = ...,
) -> Any: ...
def decode_csv(
    records: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
    name: str | None = None,
) -> list[Any]: ...
def decode_gif(contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None) -> Any: ...
def decode_image(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    channels: int | None = None,
    dtype: DTypeLike = ...,
    name: str | None = None,
    expand_animations: bool = True,
) -> Any: ...
def decode_jpeg(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
    *,
    dtype: DTypeLike = ...,
) -> Any: ...
def decode_png(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    channels: int = 0,
    dtype: DTypeLike = ...,
    name: str | None = None,
) -> Any: ...
def decode_raw(
    input_bytes: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    out_type: DTypeLike,
    little_endian: bool = True,
    name: str | None = None,
) -> Any: ...
def encode_base64(
    input: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], pad: bool = False, name: str | None = None
) -> Any: ...
def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Any: ...
def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Any: ...
def extract_jpeg_shape(
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    output_type: DTypeLike = ...,
    name: str | None = None,
) -> Any: ...
def is_jpeg(contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None) -> Any: ...
def parse_example(
    serialized: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    features: Mapping[str, Any],
    example_names: object = None,
    name: str | None = None,
) -> dict[str, Any]: ...
def parse_single_example(
    serialized: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    features: Mapping[str, Any],
    example_names: object = None,
    name: str | None = None,
) -> dict[str, Any]: ...
def parse_tensor(
    serialized: str | bytes | Sequence[str | bytes] | ndarray[Any, Any], out_type: DTypeLike, name: str | None = None
) -> Any: ...
def read_file(filename: str | bytes | PathLike[str] | ndarray[Any, Any], name: str | None = None) -> Any: ...
def serialize_tensor(
    tensor: Any | str | bytes | Sequence[str | bytes] | ndarray[Any, Any], name: str | None = None
) -> Any: ...
def write_file(
    filename: str | bytes | PathLike[str] | ndarray[Any, Any],
    contents: str | bytes | Sequence[str | bytes] | ndarray[Any, Any],
    name: str | None = None,
) -> None: ...
