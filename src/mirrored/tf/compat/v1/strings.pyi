"""Type stub of `tf.compat.v1.strings`, written by tools/tf_stubs.py."""

from mirrored.tf.strings import as_string as as_string
from mirrored.tf.strings import bytes_split as bytes_split
from mirrored.tf.strings import join as join
from mirrored.tf.strings import lower as lower
from mirrored.tf.strings import regex_full_match as regex_full_match
from mirrored.tf.strings import regex_replace as regex_replace
from mirrored.tf.strings import strip as strip
from mirrored.tf.strings import unicode_split as unicode_split
from mirrored.tf.strings import upper as upper
