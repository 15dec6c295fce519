from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored.tf as tf

F, S = tf.io.FixedLenFeature, tf.io.FixedLenSequenceFeature


def example(**values: list[Any]) -> bytes:
    features = {}
    for name, value in values.items():
        if isinstance(value[0], bytes):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        elif isinstance(value[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized


A = example(x=[1.0, 2.0], n=[7], s=[b"hi"])
B = example(x=[3.0, 4.0], n=[2**40])
C = example(x=[1.0, 2.0, 3.0, 4.0])
EXAMPLES = {"A": A, "B": B, "C": C, "no example": b"\xff\xffnot"}  # in ids of tests the bytes would differ between runs


def plain(parsed: dict[str, Any]) -> dict[str, Any]:
    return {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in parsed.items()}


def test_the_bytes_are_those_of_tensorflow() -> None:
    # Of TensorFlow 2.21: tf.train.Example with int64_list [1, 300] under "n".
    assert example(n=[1, 300]) == b"\n\x0e\n\x0c\n\x01n\x12\x07\x1a\x05\n\x03\x01\xac\x02"
    assert tf.io.serialize_tensor(np.array([1, 2], np.float32)).numpy() == (
        b'\x08\x01\x12\x04\x12\x02\x08\x02"\x08\x00\x00\x80?\x00\x00\x00@'
    )
    assert tf.io.serialize_tensor(tf.constant(True)) == b'\x08\n\x12\x00"\x01\x01'


# What TensorFlow 2.21 gives for these calls.
@pytest.mark.parametrize(
    ("name", "features", "expected"),
    [
        (
            "A",
            {"x": F([2], tf.float32), "n": F([], tf.int64), "s": F([], tf.string)},
            {"x": [1.0, 2.0], "n": 7, "s": b"hi"},
        ),
        ("B", {"s": F([], tf.string, default_value=""), "n": F([], tf.int64)}, {"s": b"", "n": 2**40}),
        ("B", {"q": F([2], tf.float32, default_value=[1.0, 2.0])}, {"q": [1.0, 2.0]}),
        ("C", {"x": F([2, 2], tf.float32)}, {"x": [[1.0, 2.0], [3.0, 4.0]]}),
        ("A", {"x": S([], tf.float32, allow_missing=True), "q": S([], tf.int64, True)}, {"x": [1.0, 2.0], "q": []}),
        ("C", {"x": S([2], tf.float32, allow_missing=True)}, {"x": [[1.0, 2.0], [3.0, 4.0]]}),
    ],
)
def test_single_examples(name: str, features: dict[str, Any], expected: dict[str, Any]) -> None:
    assert plain(tf.io.parse_single_example(EXAMPLES[name], features)) == expected


def test_batches_of_examples() -> None:
    parsed = tf.io.parse_example([A, B], {"x": F([2], tf.float32), "n": F([], tf.int64)})
    assert plain(parsed) == {"x": [[1.0, 2.0], [3.0, 4.0]], "n": [7, 2**40]}
    padded = tf.io.parse_example([A, C], {"x": S([], tf.float32, allow_missing=True, default_value=-1.0)})
    assert plain(padded) == {"x": [[1.0, 2.0, -1.0, -1.0], [1.0, 2.0, 3.0, 4.0]]}
    assert plain(tf.io.parse_example(A, {"n": F([], tf.int64)})) == {"n": 7}


@pytest.mark.parametrize("default", ["pad", b"pad"])
def test_texts_are_padded_with_bytes(default: str | bytes) -> None:
    feature = S([], tf.string, allow_missing=True, default_value=default)
    assert plain(tf.io.parse_example([A, B], {"s": feature})) == {"s": [[b"hi"], [b"pad"]]}


def test_values_have_numpy_and_mix_with_tensors() -> None:
    parsed = tf.io.parse_single_example(A, {"x": F([2], tf.float32), "n": F([], tf.int64), "s": F([], tf.string)})
    assert parsed["s"].numpy().decode() == "hi"
    assert parsed["n"].numpy() == 7
    assert parsed["n"].dtype == tf.int64
    assert parsed["s"].dtype == tf.string
    total = parsed["x"] * tf.constant(2.0)
    assert isinstance(total, jax.Array)
    assert total.numpy().tolist() == [2.0, 4.0]
    assert tf.reduce_sum(parsed["x"]).numpy() == 3.0


@pytest.mark.parametrize(
    ("name", "features", "message"),
    [
        ("B", {"s": F([], tf.string)}, "the feature 's' is missing"),
        ("A", {"x": F([3], tf.float32)}, r"has 2 values, not those of the shape \[3\]"),
        ("A", {"x": F([2], tf.int64)}, "is a float_list, not a int64_list"),
        ("A", {"x": F([2], tf.int32)}, "features can only be float32, int64 or string"),
        ("A", {"q": F([2], tf.float32, default_value=1.0)}, "has a default_value of shape"),
        (
            "A",
            {"q": F([], tf.int64, default_value=0.75)},
            "has the default_value 0.75, which is not of its dtype, int64",
        ),
        ("A", {"x": F([2], tf.float32, default_value="a")}, "has the default_value a, "),
        ("A", {"q": F([], tf.string, default_value=1)}, "has the default_value 1, which is not of its dtype, string"),
        ("A", {"q": S([], tf.int64, allow_missing=True, default_value=-0.5)}, "has the default_value -0.5"),
        ("C", {"x": S([3], tf.float32, allow_missing=True)}, "not a multiple of the shape"),
        ("no example", {"x": F([], tf.float32)}, "the bytes are not a tf.train.Example"),
    ],
)
def test_examples_that_do_not_fit(name: str, features: dict[str, Any], message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.io.parse_single_example(EXAMPLES[name], features)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.io.parse_example([EXAMPLES[name]], features)


def test_features_that_are_none() -> None:
    with pytest.raises(ValueError, match="features cannot be empty"):
        tf.io.parse_single_example(A, {})
    with pytest.raises(ValueError, match="requires allow_missing to be True"):
        tf.io.parse_single_example(A, {"x": S([], tf.float32)})
    with pytest.raises(ValueError, match="FixedLenFeature and tf.io.FixedLenSequenceFeature are known"):
        tf.io.parse_single_example(A, {"x": tf.float32})
    with pytest.raises(AttributeError, match="allow_missing=True"):
        tf.io.VarLenFeature(tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="use tf.io.parse_example for a batch"):
        tf.io.parse_single_example([A, B], {"n": F([], tf.int64)})


@pytest.mark.parametrize("packing", ["", "GZIP", "ZLIB"])
def test_records_are_written_read_and_parsed(tmp_path: Path, packing: str) -> None:
    path = str(tmp_path / "data.tfrecord")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=packing)) as writer:
        for k in range(5):
            writer.write(example(x=[float(k), 2.0 * k], n=[k]))
    features = {"x": F([2], tf.float32), "n": F([], tf.int64)}
    records = tf.data.TFRecordDataset([path], compression_type=packing)
    dataset = records.map(lambda text: tf.io.parse_single_example(text, features)).batch(2)
    batches = list(dataset)
    assert [batch["n"].numpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[1]["x"].numpy().tolist() == [[2.0, 4.0], [3.0, 6.0]]
    whole = records.batch(5).map(lambda texts: tf.io.parse_example(texts, features))
    assert next(iter(whole))["n"].numpy().tolist() == [0, 1, 2, 3, 4]
    texts = records.map(lambda text: tf.io.parse_single_example(text, {"s": F([], tf.string, default_value="none")}))
    assert next(iter(texts))["s"].numpy() == b"none"
    raw = next(iter(records)).numpy()
    assert tf.train.Example.FromString(raw).features.feature["n"].int64_list.value == [0]


def test_writers_refuse_what_is_no_record(tmp_path: Path) -> None:
    writer = tf.io.TFRecordWriter(tmp_path / "a", "GZIP")
    with pytest.raises(TypeError, match="a record must be a bytes object"):
        writer.write("text")
    writer.write(b"one")
    writer.flush()
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="the writer is closed"):
        writer.write(b"two")
    assert list(tf.data.TFRecordDataset(tmp_path / "a", "GZIP")) == [b"one"]
    with pytest.raises(ValueError, match="compression_type must be one of"):
        tf.io.TFRecordWriter(tmp_path / "a", "BZ2")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_tensors_as_bytes(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    parsed = tf.io.parse_tensor(tf.io.serialize_tensor(array), dtype)
    assert parsed.dtype == dtype
    assert parsed.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("tensor", "parsed"),
    [
        (b"a\0", b"a\0"),
        (tf.constant("12"), b"12"),  # NumPy takes bytes objects of other classes for numbers
        ([b"a\0", "b"], [b"a\0", b"b"]),
        (np.array(["a", "bc"]), [b"a", b"bc"]),
        (np.array([1, 2], ">i4"), [1, 2]),
        ([1, 2], [1, 2]),
        (1.5, 1.5),
        (tf.Variable([1, 2]), [1, 2]),
    ],
)
def test_tensors_are_serialized_as_they_are(tensor: Any, parsed: Any) -> None:
    dtype = tf.string if isinstance(np.ravel(parsed)[0], bytes) else tf.float32 if parsed == 1.5 else tf.int32
    assert tf.io.parse_tensor(tf.io.serialize_tensor(tensor), dtype).tolist() == parsed


def test_tensors_of_texts_and_wrong_bytes() -> None:
    texts = tf.io.parse_tensor(tf.io.serialize_tensor(np.array([b"a", b"bc"], object)), tf.string)
    assert texts.tolist() == [b"a", b"bc"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the tensor has dtype .*int64.*, not .*int32"):
        tf.io.parse_tensor(tf.io.serialize_tensor(np.arange(3)), tf.int32)
    # As TensorFlow writes a constant of one repeated value: dtype float, shape [3], float_val [2].
    repeated = b"\x08\x01\x12\x04\x12\x02\x08\x03*\x04" + struct.pack("<f", 2.0)
    assert tf.io.parse_tensor(repeated, tf.float32).tolist() == [2.0, 2.0, 2.0]


def test_raw_numbers() -> None:
    assert tf.io.decode_raw(b"\x01\x00\x02\x00", tf.int16).tolist() == [1, 2]
    assert tf.io.decode_raw([b"\x01\x00", b"\x02\x00"], tf.int16).tolist() == [[1], [2]]
    assert tf.io.decode_raw(b"\x00\x01", tf.int16, little_endian=False).tolist() == [1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a multiple of 2"):
        tf.io.decode_raw(b"\x01\x00\x02", tf.int16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same length"):
        tf.io.decode_raw([b"\x01\x00", b"\x02\x00\x03\x00"], tf.int16)


def test_a_tensor_is_parsed_of_one_text() -> None:
    text = tf.io.serialize_tensor(np.arange(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf.io.parse_tensor: `serialized` has the shape \[2\]"):
        tf.io.parse_tensor([text, text], tf.int64)


@pytest.mark.parametrize(
    ("dtype", "field", "encoded", "expected"),
    [
        (tf.float16, 13, bytes([0x80, 0x7C]), 1.5),
        (tf.bfloat16, 13, bytes([0xC0, 0x7F]), 1.5),
        (tf.uint32, 16, bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), 2**32 - 1),
        (tf.uint64, 17, bytes([0x07]), 7),
        (tf.complex64, 9, struct.pack("<ff", 1, -2), 1 - 2j),
        (tf.complex128, 12, struct.pack("<dd", 1, -2), 1 - 2j),
    ],
)
def test_numbers_in_the_fields_of_their_types(dtype: Any, field: int, encoded: bytes, expected: Any) -> None:
    """`tf.make_tensor_proto` stores scalars in these fields, which are not those of `serialize_tensor`."""
    tag = field << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    proto = bytes([8, dtype.as_datatype_enum, 0x12, 0]) + head + bytes([len(encoded)]) + encoded
    assert tf.io.parse_tensor(proto, dtype).numpy() == expected
