from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, ArraySpec, Dataset
from mirrored.errors import ArgumentError, DataFileError, MirroredError, StructureError

TABLE = 'a,b,c\n1,2.5,x\n3,,y\n5,6.5,"z,w"\n'


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


ROWS = [(1, 2.5, b"x"), (3, 0.0, b"y"), (5, 6.5, b"z,w")]


# What TensorFlow 2.21 gives for these calls.
@pytest.mark.parametrize(
    ("defaults", "options", "expected"),
    [
        ([0, 0.0, ""], {}, ROWS),
        ([[0], [0.0], [""]], {}, ROWS),
        ([np.int32, 0.0, str], {}, ROWS),
        ([np.int64, str], {"select_cols": [0, 2]}, [(1, b"x"), (3, b"y"), (5, b"z,w")]),
        ([np.int64, str], {"exclude_cols": [1]}, [(1, b"x"), (3, b"y"), (5, b"z,w")]),
        ([7, 1.0, ""], {"na_value": "5"}, [(1, 2.5, b"x"), (3, 1.0, b"y"), (7, 6.5, b"z,w")]),
    ],
)
def test_rows(table: str, defaults: list[Any], options: dict[str, Any], expected: list[Any]) -> None:
    rows = Dataset.from_csv(table, defaults, header=True, **options)
    assert read(rows) == expected
    assert_resumes_everywhere(rows)


def test_specs_are_known_without_reading(table: str) -> None:
    rows = Dataset.from_csv("not there.csv", [0, np.float64, ""])
    assert [spec.dtype.name for spec in rows.element_spec] == ["int32", "float64", "object"]
    batches = Dataset.csv_batches(table, 2, label_name="a")
    features, label = batches.element_spec
    assert dict(features) == {"b": ArraySpec((2,), np.dtype("float32")), "c": ArraySpec((2,), np.dtype(object))}
    assert label == ArraySpec((2,), np.dtype("int32"))


def test_fields_over_several_lines_other_delimiters_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(b'1|"two\nlines"\r\n2|say hi\r\n\r\n3|"say ""hi"""\n\n')
    rows = read(Dataset.from_csv(str(path), [0, ""], field_delim="|"))
    assert rows == [(1, b"two\nlines"), (2, b"say hi"), (3, b'say "hi"')]
    path.write_bytes(b'1,"a\n2,b"\n')
    assert read(Dataset.from_csv(str(path), [0, ""], use_quote_delim=False)) == [(1, b'"a'), (2, b'b"')]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_quoted_fields_keep_their_line_breaks(tmp_path: Path, line_break: str) -> None:
    path = tmp_path / "breaks.csv"
    field = f"x{line_break}{line_break}y\n"
    path.write_bytes(f'a,b{line_break}1,"{field}"{line_break}2,z{line_break}'.encode())
    rows = Dataset.from_csv(str(path), [0, ""], header=True)
    assert read(rows) == [(1, field.encode()), (2, b"z")]
    assert [one["b"] for one in batches(str(path), 1)] == [[field.encode()], [b"z"]]
    assert_resumes_everywhere(rows)


def test_quotes_inside_quoted_fields(tmp_path: Path) -> None:
    path = tmp_path / "quoted.csv"
    path.write_text('"a ""b"", c",1\n"",2\n"""",3\n')
    assert read(Dataset.from_csv(str(path), ["", 0])) == [(b'a "b", c', 1), (b"", 2), (b'"', 3)]


def test_several_files_and_packed_ones(table: str, tmp_path: Path) -> None:
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(TABLE.encode()))
    assert read(Dataset.from_csv([table, table], [0, 0.0, ""], header=True)) == ROWS * 2
    assert read(Dataset.from_csv(str(packed), [0, 0.0, ""], "GZIP", header=True)) == ROWS
    names = Dataset.from_tensor_slices([table, table])
    assert read(Dataset.from_csv(names, [0, 0.0, ""], header=True)) == ROWS * 2


@pytest.mark.parametrize(
    ("text", "defaults", "options", "message"),
    [
        (TABLE, [np.int32, np.float32, str], {"header": True}, "field 1 of record 1 is empty"),
        (TABLE, [0, 0.0], {"header": True}, "3 fields instead of 2"),
        (TABLE, [0, 0.0, ""], {}, "field 0 of record 0 is not a valid int32: 'a'"),
        ("3000000000\n", [0], {}, "not a valid int32: '3000000000'"),
        ("1_000\n", [0], {}, "not a valid int32: '1_000'"),
        ("1_0.5\n", [0.0], {}, "not a valid float32: '1_0.5'"),
        ("١\n", [0], {}, "not a valid int32: '١'"),
        ('1,"open\n', [0, ""], {}, "unexpected end of data"),
        ('1,a"b\n', [0, ""], {}, "a quote inside a field that does not begin with one"),
        ('1|"a|""b"|c"\n', [0, "", ""], {"field_delim": "|"}, "a quote inside a field that does not begin with one"),
    ],
)
def test_lines_that_do_not_fit(
    tmp_path: Path, text: str, defaults: list[Any], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(StructureError, match=message):
        list(Dataset.from_csv(str(path), defaults, **options))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Dataset.from_csv("t", [0], select_cols=[0], exclude_cols=[1]),
            "only one of select_cols and exclude_cols",
        ),
        (lambda: Dataset.from_csv("t", [0, 0], select_cols=[2, 0]), "select_cols must be increasing"),
        (lambda: Dataset.from_csv("t", [[1, 2]]), "one number, string or dtype per column"),
        (lambda: Dataset.from_csv("t", [1j]), "one number, string or dtype per column"),
        (lambda: list(Dataset.from_csv("none.csv", [0])), "the file none.csv cannot be opened"),
        (lambda: Dataset.csv_batches("none*.csv", 2), "no file matches none"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(MirroredError, match=message) as raised:
        make()
    assert isinstance(raised.value, ArgumentError | DataFileError)


def batches(table: str, size: int, **options: Any) -> list[Any]:
    return read(Dataset.csv_batches(table, size, shuffle=False, **{"num_epochs": 1, **options}))


def test_batches_infer_what_columns_hold(table: str) -> None:
    first, last = batches(table, 2)
    assert list(first.items()) == [("a", [1, 3]), ("b", [2.5, 0.0]), ("c", [b"x", b"y"])]
    assert dict(last) == {"a": [5], "b": [6.5], "c": [b"z,w"]}


def test_batches_have_labels_selections_and_names(table: str) -> None:
    assert batches(table, 3, label_name="a") == [({"b": [2.5, 0.0, 6.5], "c": [b"x", b"y", b"z,w"]}, [1, 3, 5])]
    assert batches(table, 3, select_columns=["b", "a"]) == [{"a": [1, 3, 5], "b": [2.5, 0.0, 6.5]}]
    assert batches(table, 3, select_columns=[0]) == [{"a": [1, 3, 5]}]
    assert batches(table, 1, column_names=["x", "y", "z"])[0] == {"x": [1], "y": [2.5], "z": [b"x"]}
    whole = batches(table, 4, header=False, column_names=["x", "y", "z"])[0]
    assert whole["x"] == [b"a", b"1", b"3", b"5"]
    assert batches(table, 3, column_defaults=[0.0, -1.0, ""])[0]["b"] == [2.5, -1.0, 6.5]


def test_batches_go_over_the_ends_of_epochs(table: str) -> None:
    assert [one["a"] for one in batches(table, 2, select_columns=["a"], num_epochs=2)] == [[1, 3], [5, 1], [3, 5]]
    endless = Dataset.csv_batches(table, 2, select_columns=["a"], shuffle=False)
    assert endless.cardinality() == INFINITE_CARDINALITY
    assert Dataset.csv_batches(table, 2, num_epochs=1).cardinality() == UNKNOWN_CARDINALITY
    assert [one["a"] for one in read(endless.take(3))] == [[1, 3], [5, 1], [3, 5]]


def test_shuffled_batches_have_every_row_once_and_positions(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"part{number}.csv").write_text("n\n" + "\n".join(str(10 * number + k) for k in range(10)))
    shuffled = Dataset.csv_batches(str(tmp_path / "*.csv"), 4, num_epochs=1, shuffle_seed=3, num_parallel_reads=2)
    rows = [n for one in read(shuffled) for n in one["n"]]
    assert sorted(rows) == list(range(30))
    assert rows != sorted(rows)
    assert_resumes_everywhere(shuffled)


def test_rows_that_cannot_be_read_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("a,b\n1,2\n3,x\n5\n7,8\n9,10\n")
    options: dict[str, Any] = {"column_defaults": [0, 0], "ignore_errors": True}
    assert batches(str(path), 2, **options) == [{"a": [1, 7], "b": [2, 8]}, {"a": [9], "b": [10]}]
    with pytest.raises(StructureError, match="not a valid int32: 'x'"):
        batches(str(path), 2, column_defaults=[0, 0])


LINES_AROUND = "id,size\n1,a\n{}\n" + "".join(f"{number},ok\n" for number in range(3, 50))


@pytest.mark.parametrize("line", ['2,5" pipe', '2,a"b"c"', '2"', '"2"x",a', '2,"a"b"'])
def test_a_stray_quote_leaves_out_its_own_line_only(tmp_path: Path, line: str) -> None:
    """Lines with an odd number of quotes were joined with the next one that has one, or with the rest of the file."""
    path = tmp_path / "stray.csv"
    path.write_text(LINES_AROUND.format(line))
    rows = read(Dataset.from_csv(str(path), [0, ""], header=True).ignore_errors())
    options: dict[str, Any] = {"column_defaults": [0, ""], "ignore_errors": True}
    (batch,) = batches(str(path), 100, **options)
    assert batch["id"] == [number for number, _ in rows] == [1, *range(3, 50)]


# The rows of TensorFlow's own tests of `CsvDataset` with errors.
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['1,2"3,4', 'a,b,c"d', '9,8"7,6,5', "e,f,g"], [(b"e", b"f", b"g")]),
        (['1,"2"3",4', '1,"2"3",4",5,5', 'a,b,"c"d"', "e,f,g"], [(b"e", b"f", b"g")]),
        (['1,"a', 'b",2', '"x","y""z","w', "", 'v"'], [(b"1", b"a\nb", b"2"), (b"x", b'y"z', b"w\n\nv")]),
    ],
)
def test_quotes_open_fields_as_in_tensorflow(tmp_path: Path, lines: list[str], expected: list[Any]) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text("\n".join(lines))
    assert read(Dataset.from_csv(str(path), [""] * 3).ignore_errors()) == expected


@pytest.mark.parametrize("quote", ["", '"'])
def test_fields_have_any_size(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"1,{quote}{'x' * 140_000}{quote}\n")
    assert [(number, len(text)) for number, text in read(Dataset.from_csv(str(path), [0, ""]))] == [(1, 140_000)]


@pytest.mark.parametrize("delimiter", ["", "::", '"', "\n"])
def test_a_delimiter_is_one_character(table: str, delimiter: str) -> None:
    with pytest.raises(ArgumentError, match="the delimiter must be one character"):
        Dataset.from_csv(table, [0, 0.0, ""], field_delim=delimiter)


def test_inference(tmp_path: Path) -> None:
    path = tmp_path / "kinds.csv"
    path.write_text("a,b,c,d,e,f,g,h\n1,3000000000,1.5,1e400,,1e300,1_000,1_0.5\n,2,x,3.4e39,,1,2,3\n")
    kinds = {name: spec.dtype.name for name, spec in Dataset.csv_batches(str(path), 2).element_spec.items()}
    assert kinds == {
        "a": "int32",
        "b": "int64",
        "c": "object",
        "d": "object",
        "e": "object",
        "f": "float64",
    } | dict.fromkeys("gh", "object")


def test_inference_reads_the_rows_of_all_files(tmp_path: Path) -> None:
    """The other files' rows were errors of the dtype of the first, and dropped with `ignore_errors`."""
    (tmp_path / "a.csv").write_text("id,v\n1,1\n2,2\n")
    (tmp_path / "b.csv").write_text("id,v\n3,2.5\n4,3.5\n")
    (tmp_path / "c.csv").write_text("")
    for options in ({}, {"ignore_errors": True}, {"num_rows_for_inference": 3}, {"num_rows_for_inference": None}):
        assert batches(str(tmp_path / "*.csv"), 8, **options) == [{"id": [1, 2, 3, 4], "v": [1, 2, 2.5, 3.5]}]
    with pytest.raises(StructureError, match="not a valid int32"):
        batches(str(tmp_path / "*.csv"), 8, num_rows_for_inference=2)


def test_inference_passes_over_lines_that_ignore_errors_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "stray.csv"
    path.write_text(LINES_AROUND.format('2,5" pipe'))
    (batch,) = batches(str(path), 100, ignore_errors=True)
    assert batch["id"] == [1, *range(3, 50)]
    with pytest.raises(StructureError, match="a quote inside a field"):
        batches(str(path), 100)


def test_a_column_can_have_the_name_of_the_missing_value(tmp_path: Path) -> None:
    path = tmp_path / "missing.csv"
    path.write_text("id,NA\n1,NA\n2,5\n")
    assert batches(str(path), 2, na_value="NA") == [{"id": [1, 2], "NA": [0, 5]}]


def test_files_with_other_headers_are_refused(tmp_path: Path) -> None:
    """Their columns were read under the names of the first file, silently."""
    (tmp_path / "a.csv").write_text("id,v\n1,2\n")
    (tmp_path / "b.csv").write_text("v,id\n2,1\n")
    with pytest.raises(ArgumentError, match=r"a.csv has the columns \['id', 'v'\], .*b.csv has \['v', 'id'\]"):
        batches(str(tmp_path / "*.csv"), 2)
    assert batches(str(tmp_path / "*.csv"), 2, column_names=["x", "y"]) == [{"x": [1, 2], "y": [2, 1]}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_name": "q"}, r"one of the columns \['a', 'b', 'c'\]"),
        ({"select_columns": ["a", "q"]}, r"omit \['q'\]"),
        ({"column_defaults": [0]}, "1 column_defaults were passed for 3 columns"),
        ({"column_names": ["a", "a", "b"]}, "column names must be unique"),
        ({"header": False}, "pass column_names"),
        ({"encoding": "latin-1"}, "encoding must be UTF-8"),
    ],
)
def test_wrong_arguments_of_batches(table: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Dataset.csv_batches(table, 2, **options)
