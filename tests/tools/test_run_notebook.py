"""The runner of TensorFlow's notebooks, on notebooks made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from notebook import tables
from notebook.cells import names_of, read_cells, translate
from notebook.scope import reason_out
from notebook.stand_ins import load_data

TOOL = Path(__file__).parents[2] / "tools" / "run_notebook.py"

CELLS = [
    "import tensorflow as tf\nimport tensorflow_datasets as tfds",
    "!pip install something\n%matplotlib inline",
    "x = tf.Variable(2.0)\n!ls\nx * 3",
    "%%writefile helper.py\nimport tensorflow as tf\ndef double(v):\n  return tf.math.add(v, v)",
    "import helper\nassert float(helper.double(x)) == 4.0",
    "raise KeyError('two\\nlines')",
    "words = tf.lookup.KeyValueTensorInitializer(['a', 'b'], [1, 2])",
    "words.key_dtype",
    "undefined_name",
    "while True:\n  pass",
    "data = tfds.load('mnist', split='train[:50%]', as_supervised=True)\nlen(list(data))",
    "(train, _), _ = tf.keras.datasets.mnist.load_data()\nassert train.shape == (30, 28, 28), train.shape",
    "assert len(tf.config.list_logical_devices('GPU')) == 2",
    "import urllib.request\nurllib.request.urlopen('http://example.com/data.csv')",
    "@tf.function\ndef f(v):\n  if v > 0:\n    return v\n  return -v\nassert float(f(tf.constant(-1.0))) == 1.0",
]


def written(path: Path, sources: list[str]) -> Path:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["text"]}]
    cells += [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": one.splitlines(keepends=True)} for one in sources
    ]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 0, "metadata": {}}))
    return path


def test_imports_are_translated_and_magics_left_out():
    source = (
        "import tensorflow as tf\nfrom tensorflow.keras import layers\nfrom tensorflow import keras\n"
        "import tensorflow_datasets as tfds\nif True:\n  !ls a \\\n    b\n%time x = 1\nfiles = !ls\ny = 7 %3\n"
    )
    assert translate(source).splitlines() == [
        "import mirrored.tf as tf",
        "from mirrored.tf.keras import layers",
        "from mirrored.tf import keras",
        "import tensorflow_datasets as tfds",
        "if True:",
        "  pass",
        "",
        "pass",
        "pass",
        "y = 7 %3",
    ]


def test_a_percent_sign_inside_a_string_or_bracket_stays():
    source = 's = """\n%d\n!x\n"""\nz = (7\n%3)\n'
    assert translate(source) == source


def test_names_that_a_cell_uses_and_defines():
    used, defined = names_of("import a.b as c\ndef f(): pass\nx = y + c.z\n")
    assert used == {"y", "c"}
    assert defined == {"c", "f", "x"}


def test_cells_with_a_reason_of_their_own_are_out_of_scope():
    assert reason_out("tf.strings.length(x)", "MissingNameError: ...") == "string tensors"
    assert reason_out("# tf.strings\nx = 1", "ValueError: ...") is None
    assert reason_out("import absent", "ModuleNotFoundError: No module named 'absent'").startswith("other packages")
    assert reason_out("import keras_x", "ModuleNotFoundError: No module named 'keras_x'").startswith("other packages")
    assert reason_out("import keras.x", "ModuleNotFoundError: No module named 'keras.x'") is None
    assert reason_out("Dense(784)", "ValueError: Received an invalid value for `units`, ...").startswith(
        "fails on Tens"
    )


def test_tables_have_the_columns_of_the_originals(tmp_path):
    text = tables.csv_text("https://somewhere/titanic/train.csv")
    assert text.startswith("survived,sex,age,n_siblings_spouses,parch,fare,class,deck,embark_town,alone\n")
    assert text.count("\n") == 628
    assert len(tables.csv_text("abalone_train.csv").partition("\n")[0].split(",")) == 8
    assert tables.csv_text("unknown.csv") is None
    assert tables.write_download(tmp_path / "jena_climate_2009_2016.csv.zip", "", extract=True)
    first, second = (tmp_path / "jena_climate_2009_2016.csv").read_text().splitlines()[:2]
    assert len(first.split(",")) == len(second.split(",")) == 15
    assert tables.write_download(tmp_path / "fonts.zip", "", extract=True)
    assert len((tmp_path / "AGENCY.csv").read_text().partition("\n")[0].split(",")) == 412
    assert tables.write_download(tmp_path / "Metro_Interstate_Traffic_Volume.csv.gz", "", extract=False)
    assert not tables.write_download(tmp_path / "other.csv", "", extract=False)


def test_the_data_have_the_shapes_of_the_originals_and_can_be_learnt():
    (x, y), (test, _) = load_data("cifar10", 500)
    assert x.shape == test.shape == (500, 32, 32, 3)
    assert y.shape == (500, 1)
    means = [x[y[:, 0] == label].mean(axis=0) for label in range(2)]
    assert abs(means[0] - means[1]).mean() > 20


def test_what_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text("text")
    with pytest.raises(ValueError, match=r"a\.ipynb is not a notebook"):
        read_cells(path)


@pytest.mark.multiprocess
@pytest.mark.long
def test_the_cells_of_a_notebook_pass_fail_or_are_out_of_scope(tmp_path):
    notebook, results = written(tmp_path / "some.ipynb", CELLS), tmp_path / "results.json"
    command = [sys.executable, str(TOOL), str(notebook), "--json", str(results), "--seconds", "6", "--devices", "2"]
    done = subprocess.run([*command, "--examples", "30"], capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 1, done.stderr
    (found,) = json.loads(results.read_text())
    status = {cell["number"]: cell["status"] for cell in found["results"]}
    assert [number for number in status if status[number] == "failed"] == [6, 9, 10]
    assert [number for number in status if status[number] == "out of scope"] == [2, 7, 8, 14]
    cells = {cell["number"]: cell for cell in found["results"]}
    assert cells[2]["reason"] == "shell command"
    assert cells[6]["error"].startswith("KeyError:")
    assert cells[8]["reason"] == "needs a cell out of scope: string tensors"
    assert cells[10]["error"].startswith("CellTimeoutError")
    assert cells[14]["reason"] == "download"
    assert (found["cells"], found["passed"], found["failed"], found["out_of_scope"]) == (15, 8, 3, 4)
    assert "8" in done.stdout
    assert "72.7% of 11" in " ".join(done.stdout.split())


@pytest.mark.multiprocess
def test_cells_after_a_lost_process_have_failed(tmp_path):
    notebook, results = written(tmp_path / "some.ipynb", ["x = 1", "import os\nos._exit(3)", "x"]), tmp_path / "r.json"
    command = [sys.executable, str(TOOL), str(notebook), "--json", str(results)]
    assert subprocess.run(command, capture_output=True, timeout=55, check=False).returncode == 1
    errors = [cell["error"] for cell in json.loads(results.read_text())[0]["results"]]
    assert errors[0] == ""
    assert "exit status 3" in errors[1]
    assert errors[2] == "not run: the process was lost"
