"""`tf.strings` on texts in host memory. The expected values are recorded on TensorFlow 2.21."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf

S = tf.strings
CASES = [
    (lambda: S.split("a b  c"), [b"a", b"b", b"c"]),
    (lambda: S.split(b"a,b,,c", sep=","), [b"a", b"b", b"", b"c"]),
    (lambda: S.split("a b c", maxsplit=1), [b"a", b"b c"]),
    (lambda: S.split("a,b,c", sep=",", maxsplit=1), [b"a", b"b,c"]),
    (lambda: S.split(""), []),
    (lambda: S.regex_replace("abc ab", "a(.)", r"<\1>"), b"<b>c <b>"),
    (lambda: S.regex_replace("aaa", "a", "b", replace_global=False), b"baa"),
    (lambda: S.regex_replace(["a1", "b2"], "[0-9]", ""), [b"a", b"b"]),
    (lambda: S.regex_replace("äb", ".", "x"), b"xx"),
    (lambda: S.regex_replace("ab\nc", ".*", "x"), b"x\nx"),
    (lambda: S.regex_replace("x", "x", r"\0\0"), b"xx"),
    (lambda: S.regex_replace("x", "x", "$0"), b"$0"),
    (lambda: S.regex_replace("Hi There", "[[:upper:]]", "u"), b"ui uhere"),
    (lambda: S.regex_replace("hé", "[é]", ""), b"h"),
    (lambda: S.regex_replace(b"a\xffb", "a", "c"), b"c\xffb"),
    (lambda: S.regex_full_match(["abc", "b"], "a.*"), [True, False]),
    (lambda: S.to_number("1.5"), 1.5),
    (lambda: S.to_number(["1", "+5", " 7 "], tf.int32), [1, 5, 7]),
    (lambda: S.to_number(["1e3", "inf", "0x10"]), [1000.0, np.inf, 16.0]),
    (lambda: S.join(["a", "b"]), b"ab"),
    (lambda: S.join([["a", "b"], ["c", "d"]], separator="-"), [b"a-c", b"b-d"]),
    (lambda: S.join(["a", ["b", "c"]]), [b"ab", b"ac"]),
    (lambda: S.join([]), b""),
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], axis=1, separator=" "), [b"a b", b"c d"]),
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], separator=" "), b"a b c d"),
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], axis=-1, keepdims=True), [[b"ab"], [b"cd"]]),
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], axis=0), [b"ac", b"bd"]),
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], axis=[0, 1]), b"acbd"),  # the documentation's examples
    (lambda: S.reduce_join([["a", "b"], ["c", "d"]], axis=[1, 0]), b"abcd"),
    (lambda: S.length("héllo"), 6),
    (lambda: S.length(["héllo", "a"], unit="UTF8_CHAR"), [5, 1]),
    (lambda: S.lower("HÉ"), b"h\xc3\x89"),
    (lambda: S.lower(["HÉ", "B"], encoding="utf-8"), ["hé".encode(), b"b"]),
    (lambda: S.upper("hé"), b"H\xc3\xa9"),
    (lambda: S.upper("hé", encoding="utf-8"), "HÉ".encode()),
    (lambda: S.strip(["  a b \n", "\tb"]), [b"a b", b"b"]),
    (lambda: S.substr("hello", 1, 3), b"ell"),
    (lambda: S.substr("hello", -3, 2), b"ll"),
    (lambda: S.substr("hello", 4, 10), b"o"),
    (lambda: S.substr("hello", 5, 1), b""),
    (lambda: S.substr("hello", 1, -1), b"ello"),
    (lambda: S.substr(["hello", "world"], [0, 1], [2, 3]), [b"he", b"orl"]),
    (lambda: S.substr("hello", [0, 1], [1, 1]), [b"h", b"e"]),
    (lambda: S.substr("héllo", 1, 2, unit="UTF8_CHAR"), "él".encode()),
    (lambda: S.as_string([1.5, 2.0]), [b"1.500000", b"2.000000"]),
    (lambda: S.as_string([True, False]), [b"true", b"false"]),
    (lambda: S.as_string(3.14159, precision=2), b"3.14"),
    (lambda: S.as_string(5, width=4, fill="0"), b"0005"),
    (lambda: S.as_string(1e10, shortest=True), b"1e+10"),
    (lambda: S.as_string(2.0, scientific=True), b"2.000000e+00"),
    (lambda: S.as_string(1 + 2j), b"(1.000000,2.000000)"),
    (lambda: tf.as_string(tf.constant(7)), b"7"),
    (lambda: S.bytes_split("hé"), [b"h", b"\xc3", b"\xa9"]),
    (lambda: S.unicode_split("hé", "UTF-8"), [b"h", "é".encode()]),
]
WRONG = [
    (lambda: S.regex_replace("a", "(", ""), "Invalid pattern"),
    (lambda: S.to_number("x"), "could not correctly convert"),
    (lambda: S.to_number(""), "could not correctly convert"),
    (lambda: S.to_number("1.5", tf.int32), "int32"),
    (lambda: S.to_number("1_000", tf.int32), "could not correctly convert"),
    (lambda: S.to_number("99999999999", tf.int32), "could not correctly convert"),
    (lambda: S.join([["a"], ["b", "c"]]), "shapes do not match"),
    (lambda: S.length("x", unit="foo"), "unit='foo'"),
    (lambda: S.substr("hello", 6, 1), "out of range"),
    (lambda: S.substr("hello", -6, 2), "out of range"),
]


@pytest.mark.parametrize(("run", "expected"), CASES)
def test_values(run, expected):
    found = run()
    assert np.shape(found) == np.shape(expected)
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
    assert found.get_shape().as_list() == list(np.shape(expected))


@pytest.mark.parametrize(("run", "words"), WRONG)
def test_errors(run, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        run()


def test_what_would_be_ragged_or_is_no_text():
    for split in (S.split, S.bytes_split, lambda texts: S.unicode_split(texts, "UTF-8")):
        with pytest.raises(NotImplementedError, match="one text at a time"):
            split(["a b", "c"])
    with pytest.raises(TypeError, match="strings or bytes"):
        S.lower(5)


def test_dtypes():
    assert S.length("a").dtype == np.int32
    assert S.regex_full_match("a", "a").dtype == np.bool_
    for dtype in (tf.float32, tf.float64, tf.int32, tf.int64):
        assert S.to_number("5", dtype).dtype == dtype
    assert np.isnan(S.to_number("nan"))


def test_a_pipeline_reads_lines(tmp_path):
    (tmp_path / "data.csv").write_text("1.5, Yes\n2, no \n")

    def parsed(line):
        number, answer = tf.strings.split(line, ",")
        label = tf.strings.regex_full_match(tf.strings.lower(tf.strings.strip(answer)), "yes")
        return tf.strings.to_number(number), tf.cast(label, tf.int32)

    lines = tf.data.TextLineDataset(str(tmp_path / "data.csv")).map(parsed).batch(2)
    numbers, labels = next(iter(lines))
    assert (numbers.numpy().tolist(), labels.numpy().tolist()) == ([1.5, 2.0], [1, 0])


def test_texts_are_constants_of_compiled_functions():
    count = tf.function(lambda x: x * tf.cast(tf.strings.length("abc"), tf.float32))
    assert count(tf.constant(2.0)) == 6.0


LOW = S.lower("ABC")
LOWS = S.lower(["ABC", "d"])
OPERATORS = [  # recorded with TensorFlow 2.21
    (lambda: LOW + "z", b"abcz"),
    (lambda: "z" + LOW, b"zabc"),
    (lambda: b"z" + LOW, b"zabc"),
    (lambda: LOW + LOW, b"abcabc"),
    (lambda: LOW + ["x", "y"], [b"abcx", b"abcy"]),
    (lambda: ["x", "y"] + LOW, [b"xabc", b"yabc"]),
    (lambda: LOW + np.array(["x", "y"]), [b"abcx", b"abcy"]),
    (lambda: LOWS + "z", [b"abcz", b"dz"]),
    (lambda: "z" + LOWS, [b"zabc", b"zd"]),
    (lambda: LOWS + LOW, [b"abcabc", b"dabc"]),
    (lambda: LOW + LOWS, [b"abcabc", b"abcd"]),
    (lambda: LOWS + [["e"], ["f"]], [[b"abce", b"de"], [b"abcf", b"df"]]),
    (lambda: LOWS[1] + "x", b"dx"),
    (lambda: LOWS[:1] + "x", [b"abcx"]),
    (lambda: [one + "y" for one in LOWS], [b"abcy", b"dy"]),
    (lambda: LOW == "abc", True),
    (lambda: LOW == b"abx", False),
    (lambda: LOW != "abc", False),
    (lambda: LOW == S.lower("aBC"), True),
    (lambda: LOW == ["abc", "d"], [True, False]),
    (lambda: LOW != ["abc", "d"], [False, True]),
    (lambda: np.array(["abc", "d"]) == LOW, [True, False]),
    (lambda: LOWS == "abc", [True, False]),
    (lambda: "abc" == LOWS, [True, False]),
    (lambda: LOWS != "abc", [False, True]),
    (lambda: LOWS == LOW, [True, False]),
    (lambda: tf.equal(LOWS, "abc"), [True, False]),
    (lambda: tf.not_equal("abc", LOWS), [False, True]),
    (lambda: tf.equal("abc", "abc"), True),
]


@pytest.mark.parametrize(("run", "expected"), OPERATORS)
def test_operators(run, expected):
    found = run()
    assert (found if isinstance(found, list) else np.asarray(found, object).tolist()) == expected
    if isinstance(expected, list) and not isinstance(found, list):
        assert found.dtype == (bool if isinstance(expected[0], bool) else object)


def test_a_string_is_no_number():
    with pytest.raises(TypeError, match="bytes"):
        LOW + 1
    with pytest.raises(TypeError, match="bytes|str"):
        LOWS + 1
    with pytest.raises(TypeError, match="Expected strings or bytes"):
        tf.equal(LOWS, 1)
    assert (LOW == 1) is False
    assert {LOW: 1}[b"abc"] == 1


def test_operators_in_functions_of_datasets():
    """The label of an image is part of its path, and a position in the list of classes."""
    paths = tf.data.Dataset.from_tensor_slices(["rose/1.png", "lily/2.png"])
    classes = np.array(["lily", "rose"])
    labels = paths.map(lambda path: tf.argmax(S.split(path, "/")[-2] == classes))
    assert list(labels.as_numpy_iterator()) == [1, 0]
    assert list(paths.filter(lambda path: S.split(path, "/")[0] == "lily")) == [b"lily/2.png"]
    assert list(paths.map(lambda path: "a/" + path)) == [b"a/rose/1.png", b"a/lily/2.png"]
    assert [one.tolist() for one in paths.batch(2).map(lambda batch: batch + "!")] == [[b"rose/1.png!", b"lily/2.png!"]]
