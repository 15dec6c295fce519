from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.readings import assert_resumes_everywhere, read
from mirrored.data import AUTOTUNE, AutoShardPolicy, Dataset, Options
from mirrored.data.pipeline import dataset_source, files
from mirrored.data.pipeline.dataset_source import DatasetSource
from mirrored.data.pipeline.file_sharding import files_of_worker
from mirrored.data.pipeline.files import TFRecordWriter, masked_crc
from mirrored.data.sources import WorkerShare, as_source
from mirrored.errors import ArgumentError, DataFileError, InputError

RECORDS = [b"one", b"", b"three\x00\x00", bytes(range(256))]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def test_lines_come_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\nfour")
    (tmp_path / "b.txt").write_bytes(b"five\n")
    dataset = Dataset.from_text_lines([tmp_path / "a.txt", str(tmp_path / "b.txt")])
    assert read(dataset) == [b"one", b"two", b"", b"four", b"five"]
    assert_resumes_everywhere(dataset.batch(2))


def test_packed_files(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x\ny\n"))
    (tmp_path / "a.z").write_bytes(zlib.compress(b"x\ny\n"))
    for name, compression in (("a.gz", "GZIP"), ("a.z", "ZLIB")):
        dataset = Dataset.from_text_lines(tmp_path / name, compression)
        assert read(dataset) == [b"x", b"y"]
        assert_resumes_everywhere(dataset)


@pytest.mark.parametrize(("compress", "compression"), [(gzip.compress, "GZIP"), (zlib.compress, "ZLIB")])
def test_packed_files_of_several_streams(
    tmp_path: Path, compress: Callable[[bytes], bytes], compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = b"".join(compress(part) for part in (b"x\ny", b"", b"z\n", bytes(range(65, 91)) * 99))
    (tmp_path / "a").write_bytes(packed)
    dataset = Dataset.from_text_lines(tmp_path / "a", compression)
    for block in (1, 7, len(packed)):
        monkeypatch.setattr(files, "_BLOCK_BYTES", block)
        assert read(dataset) == [b"x", b"yz", bytes(range(65, 91)) * 99]
    (tmp_path / "a").write_bytes(packed[:-9])
    with pytest.raises(DataFileError, match=r"incomplete|before the end"):
        read(dataset)


def test_records_come_back_byte_for_byte(records: Path) -> None:
    dataset = Dataset.from_tfrecords(records)
    assert read(dataset) == RECORDS
    assert read(dataset.batch(4)) == [RECORDS]
    assert_resumes_everywhere(dataset)


def test_the_masked_crc_is_that_of_the_format() -> None:
    # 0xE3069283 is the check value of CRC32C; readers unmask by the inverse rotation.
    rotated = (masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == 0xE3069283


def test_files_of_a_list_are_interleaved(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{i}\n" for i in range(2)))
    names = Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
    dataset = names.interleave(Dataset.from_text_lines, cycle_length=2)
    assert read(dataset) == [b"a0", b"b0", b"a1", b"b1", b"c0", b"c1"]
    assert_resumes_everywhere(dataset)
    assert read(Dataset.from_text_lines(names)) == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]


# Recorded with TensorFlow 2.21, for files of 3, 1, 0 and 2 records.
ORDERS = {
    None: ["00", "01", "02", "10", "30", "31"],
    AUTOTUNE: ["00", "01", "02", "10", "30", "31"],
    1: ["00", "01", "02", "10", "30", "31"],
    2: ["00", "10", "01", "02", "30", "31"],
    3: ["00", "10", "01", "30", "02", "31"],
    8: ["00", "10", "30", "01", "31", "02"],
}


@pytest.mark.parametrize("parallel", ORDERS)
@pytest.mark.parametrize("make", [Dataset.from_text_lines, Dataset.from_tfrecords])
def test_parallel_reads_take_a_record_of_each_file_in_turn(
    make: Callable[..., Dataset], parallel: int | None, tmp_path: Path
) -> None:
    names = [str(tmp_path / str(number)) for number in range(4)]
    for number, (name, count) in enumerate(zip(names, (3, 1, 0, 2), strict=True)):
        records = [f"{number}{record}".encode() for record in range(count)]
        if make == Dataset.from_text_lines:
            Path(name).write_bytes(b"".join(record + b"\n" for record in records))
            continue
        with TFRecordWriter(name) as writer:
            for record in records:
                writer.write(record)
    for given in (names, Dataset.from_tensor_slices(names)):
        dataset = make(given, "", 1 << 20, parallel, "name")
        assert [record.decode() for record in read(dataset)] == ORDERS[parallel]
        assert_resumes_everywhere(dataset)


def test_a_position_of_other_parallel_reads_is_refused(tmp_path: Path) -> None:
    names = [tmp_path / str(number) for number in range(4)]
    for name in names:
        name.write_text("a\nb\n")

    def state(parallel: int | None) -> Any:
        iterator = iter(Dataset.from_text_lines(names, num_parallel_reads=parallel))
        next(iterator)
        return iterator.get_state()

    two = iter(Dataset.from_text_lines(names, num_parallel_reads=2))
    with pytest.raises(ArgumentError, match="pass at least the saved cycle_length"):
        two.set_state(state(3))
    with pytest.raises(ArgumentError, match="FileSource"):
        two.set_state(state(None))
    assert next(two) == b"a"


def test_less_than_one_parallel_read_is_refused() -> None:
    with pytest.raises(ArgumentError, match="TextLineDataset: num_parallel_reads=0"):
        Dataset.from_text_lines("a", num_parallel_reads=0)


def test_listed_files_are_shuffled_unless_told_otherwise(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}").touch()
    orders = {tuple(read(Dataset.list_files(str(tmp_path / "*"), seed=seed))) for seed in range(5)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {
        tuple(sorted(os.fsencode(tmp_path / str(number)) for number in range(8)))
    }


class TestFilesOfWorkers:
    @pytest.fixture(autouse=True)
    def in_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dataset_source, "host_allgather", lambda called, question, value: [value])

    @staticmethod
    def parts(tmp_path: Path, make: Callable[[list[Path]], Dataset]) -> list[Any]:
        """Reads twice what each of two workers reads of ``make(files)``, with `AutoShardPolicy.FILE`."""
        names = [tmp_path / f"{number}" for number in range(4)]
        for number, name in enumerate(names):
            name.write_text(f"{number}\n")
        options = Options()
        options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
        whole = as_source(make(names).with_options(options), None, "test")
        found = []
        for worker in range(2):
            source = whole.of_worker(WorkerShare(worker, (0, 1), 1, 2), "test")
            assert isinstance(source, DatasetSource)
            found.append([np.ravel(read(source.dataset)).tolist() for _ in range(2)])
        return found

    @pytest.mark.parametrize("kind", ["items", "sequence", "folder", "snapshot"])
    def test_a_cache_keeps_the_elements_of_its_worker(self, tmp_path: Path, kind: str) -> None:
        def cached(names: list[Path]) -> Dataset:
            if kind == "items":
                paths = Dataset.from_tensor_slices([str(name) for name in names])
                return paths.map(lambda path: int(Path(path.decode()).read_text())).cache().batch(2)
            numbers = Dataset.from_text_lines(names).map(int)
            if kind == "snapshot":
                return numbers.snapshot(tmp_path / "kept").batch(2)
            return numbers.cache(tmp_path / "kept" if kind == "folder" else "").batch(2)

        assert self.parts(tmp_path, cached) == [[[0, 2], [0, 2]], [[1, 3], [1, 3]]]
        if kind in ("folder", "snapshot"):
            assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["worker-0-of-2", "worker-1-of-2"]

    def test_parallel_reads(self, tmp_path: Path) -> None:
        def lines(names: list[Path]) -> Dataset:
            return Dataset.from_text_lines(names, num_parallel_reads=2).map(int).batch(4)

        assert self.parts(tmp_path, lines) == [[[0, 2]] * 2, [[1, 3]] * 2]

    def test_combined_files(self, tmp_path: Path) -> None:
        def zipped(names: list[Path]) -> Dataset:
            lines = Dataset.from_text_lines(names)
            return Dataset.zip((lines.map(int), lines.map(int))).map(lambda a, b: a * 10 + b).batch(4)

        def concatenated(names: list[Path]) -> Dataset:
            lines = Dataset.from_text_lines(names).map(int)
            return lines.concatenate(lines).batch(4)

        assert self.parts(tmp_path, zipped) == [[[0, 22]] * 2, [[11, 33]] * 2]
        assert self.parts(tmp_path, concatenated) == [[[0, 2, 0, 2]] * 2, [[1, 3, 1, 3]] * 2]

    @pytest.mark.parametrize(
        "combined",
        [
            lambda lines, labels: Dataset.zip((lines, labels)),
            lambda lines, labels: Dataset.zip((labels.shuffle(4), lines)),
            lambda lines, labels: lines.map(int).concatenate(labels),
            lambda lines, labels: lines.map(int).concatenate(Dataset.from_tensors(1)),
            lambda lines, labels: Dataset.sample_from_datasets([lines.map(np.int64), labels]),
            lambda lines, labels: Dataset.choose_from_datasets([labels] * 4, lines.map(int)),
        ],
        ids=["zip", "zip_labels_first", "concatenate", "concatenate_constant", "sample", "choices"],
    )
    def test_data_without_files_next_to_files_is_refused(
        self, tmp_path: Path, combined: Callable[[Dataset, Dataset], Dataset]
    ) -> None:
        labels = Dataset.from_tensor_slices(np.arange(4, dtype=np.int64))
        with pytest.raises(
            ArgumentError, match=r"AutoShardPolicy\.FILE, and \w+ of a dataset of files and one without"
        ):
            self.parts(tmp_path, lambda names: combined(Dataset.from_text_lines(names), labels).batch(4))

    def test_numbers_constants_and_random_numbers_next_to_files(self, tmp_path: Path) -> None:
        def combined(names: list[Path]) -> Dataset:
            lines = Dataset.from_tensor_slices([str(name) for name in names]).enumerate().enumerate(5)
            several = Dataset.zip((lines, Dataset.random(1), Dataset.counter(), Dataset.from_tensors(7).repeat()))
            return several.map(lambda pair, drawn, number, one: pair[1][0] * 100 + number * 10 + one).batch(4)

        assert self.parts(tmp_path, combined) == [[[7, 117]] * 2] * 2
        options = Dataset.from_text_lines([tmp_path / "0", tmp_path / "1"]).map(int)
        mixed = Dataset.choose_from_datasets([options, options], Dataset.range(2).repeat())
        assert [read(Dataset(files_of_worker(mixed.node, worker, 2, "test"))) for worker in (0, 1)] == [[0, 0], [1, 1]]

    def test_a_shuffle_used_twice_has_two_orders(self, tmp_path: Path) -> None:
        def zipped(names: list[Path]) -> Dataset:
            lines = Dataset.from_tensor_slices([str(name) for name in names] * 16).shuffle(64, seed=1)
            return Dataset.zip((lines, lines)).map(lambda a, b: int(a != b)).batch(4)

        assert all(1 in ones for ones, _ in self.parts(tmp_path, zipped))


class TestFaults:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataFileError, match=r"gone\.txt cannot be opened"):
            read(Dataset.from_text_lines(tmp_path / "gone.txt"))

    def test_a_file_that_vanishes_before_its_turn_is_named(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text(name)
        reading = iter(Dataset.from_text_lines([tmp_path / "a.txt", tmp_path / "b.txt"]))
        assert next(reading) == b"a"
        (tmp_path / "b.txt").unlink()
        with pytest.raises(DataFileError, match=r"b\.txt cannot be opened"):
            next(reading)

    @pytest.mark.parametrize("keep", [5, 13, 30, 33, 60])
    def test_a_truncated_record_is_named(self, records: Path, keep: int) -> None:
        records.write_bytes(records.read_bytes()[:keep])
        with pytest.raises(DataFileError, match=r"record \d+ of .*records\.tfrecord: (its header|the file ends)"):
            read(Dataset.from_tfrecords(records))

    @pytest.mark.parametrize(("place", "what"), [(0, "length"), (13, "data")])
    def test_a_damaged_record_is_named(self, records: Path, place: int, what: str) -> None:
        damaged = bytearray(records.read_bytes())
        damaged[place] ^= 1
        records.write_bytes(bytes(damaged))
        with pytest.raises(DataFileError, match=f"record 0 of .*the CRC of its {what} is wrong"):
            read(Dataset.from_tfrecords(records))

    def test_a_damaged_archive_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.gz").write_bytes(b"not an archive")
        (tmp_path / "a.z").write_bytes(b"not an archive")
        with pytest.raises(DataFileError, match=r"a\.gz: it cannot be read"):
            read(Dataset.from_text_lines(tmp_path / "a.gz", "GZIP"))
        with pytest.raises(DataFileError, match=r"a\.z cannot be opened"):
            read(Dataset.from_text_lines(tmp_path / "a.z", "ZLIB"))


@pytest.mark.parametrize(
    "combined",
    [lambda lines: Dataset.zip((lines, lines)).map(lambda a, b: a + b), lambda lines: lines.concatenate(lines.take(1))],
    ids=["zip", "concatenate"],
)
def test_a_worker_reads_its_files_in_combined_datasets(tmp_path: Path, combined: Callable[[Dataset], Dataset]) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(f"{name}\n")
    dataset = combined(Dataset.from_text_lines([tmp_path / name for name in "abcd"]))
    shares = [Dataset(files_of_worker(dataset.node, worker, 2, "test")) for worker in range(2)]
    assert [read(share) for share in shares] in (
        [[b"aa", b"cc"], [b"bb", b"dd"]],
        [[b"a", b"c", b"a"], [b"b", b"d", b"b"]],
    )


@pytest.mark.parametrize("other", ["texts", "fewer files"])
def test_files_do_not_pair_with_texts_in_memory_or_fewer_files(tmp_path: Path, other: str) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "ab").write_text("a\nb\n")
    (tmp_path / "cd").write_text("c\nd\n")
    lines = Dataset.from_text_lines([tmp_path / name for name in "abcd"])
    texts = Dataset.from_tensor_slices(np.array(["a", "b", "c", "d"]))
    pairs = Dataset.zip(
        (lines, texts if other == "texts" else Dataset.from_text_lines([tmp_path / "ab", tmp_path / "cd"]))
    )
    with pytest.raises(ArgumentError, match="pair only if all datasets"):
        files_of_worker(pairs.node, 0, 2, "test")


@pytest.mark.parametrize(("compression", "packed"), [("", bytes), ("GZIP", gzip.compress), ("ZLIB", zlib.compress)])
@pytest.mark.parametrize(
    ("before", "taken", "after"),
    [
        ([10], 8, [2]),
        ([10, 10], 8, [2, 10]),
        ([10, 10], 15, [10]),
        ([10, 10], 15, [10, 2]),
    ],
)
def test_a_position_beyond_the_end_of_shorter_files_is_refused(
    tmp_path: Path, compression: str, packed: Callable[[bytes], bytes], before: Any, taken: int, after: Any
) -> None:
    def lines(counts: list[int]) -> Any:
        for number, count in enumerate(counts):
            (tmp_path / f"{number}").write_bytes(packed(b"line\n" * count))
        return iter(Dataset.from_text_lines([tmp_path / f"{number}" for number in range(len(counts))], compression))

    iterator = lines(before)
    for _ in range(taken):
        next(iterator)
    state = iterator.get_state()
    rest = list(iterator)
    unchanged = lines(before)
    unchanged.set_state(state)
    assert list(unchanged) == rest
    with pytest.raises(InputError, match="fewer elements than when the position was saved"):
        lines(after).set_state(state)
