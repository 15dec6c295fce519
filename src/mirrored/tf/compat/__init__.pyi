"""Type stub of `tf.compat`, written by tools/tf_stubs.py."""

from mirrored.tf.compat import v1 as v1

def as_bytes(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> bytes: ...
def as_text(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> str: ...

as_str = as_text
as_str_any = str
