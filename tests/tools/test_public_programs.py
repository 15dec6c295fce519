"""The runner of public programs, on programs made here; the page of tallies."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import run_public_programs  # noqa: E402
import write_tallies  # noqa: E402
from public_programs import shortening, substitutions  # noqa: E402

PROGRAM = """\
import argparse
import tensorflow as tf
from tensorflow import keras
import tensorflow_datasets as tfds

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=90)
arguments = parser.parse_args()
strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
assert strategy.num_replicas_in_sync == 2
(x, y), _ = keras.datasets.mnist.load_data()
assert len(x) == 60
assert len(list(tfds.load("mnist", split=tfds.Split.TRAIN))) == 60
with strategy.scope():
    model = keras.Sequential([keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x / 255.0, y, batch_size=20, epochs=arguments.epochs, verbose=0)
assert len(history.history["loss"]) == 2, history.history
open("written.txt", "w").write("here")
"""


def repository(folder: Path, text: str) -> tuple[Path, str]:
    """A folder of sources with one repository, and its commit."""
    clone = folder / "someone+programs"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text(text)
    git = ["git", "-C", str(clone), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (clone / "train.py").write_text("raise SystemExit('not the file of the commit')")
    return folder, commit


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_program_is_run_from_its_commit(tmp_path: Path) -> None:
    sources, commit = repository(tmp_path / "sources", PROGRAM)
    selection = tmp_path / "selection.json"
    programs = [{"repo": "someone/programs", "commit": commit, "path": "train.py"}]
    selection.write_text(json.dumps({"programs": programs}))
    record = tmp_path / "results.json"
    options = ["--sources", str(sources), "--selection", str(selection), "--examples", "60", "--seconds", "250"]
    options += ["--logs", str(tmp_path / "logs"), "--record", "first", "--results", str(record)]
    result = CliRunner().invoke(run_public_programs.main, options)
    assert result.exit_code == 0, result.output
    assert "1 of 1 programs end without an error" in result.output
    assert json.loads(record.read_text())["first"]["outcomes"] == {"someone/programs: train.py": ""}
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["someone_programs_train_py.txt"]


@pytest.mark.long
def test_the_error_of_a_program_is_reported() -> None:
    program = run_public_programs.Program("failing", "import tensorflow as tf\ntf.no_such_name\n")
    outcome = run_public_programs.run_program(program, seconds=200, devices=2, examples=10)
    assert not outcome.passed
    assert outcome.error.startswith("mirrored.tf._errors.MissingNameError: tf.no_such_name")
    assert 'File "program.py", line 2' in outcome.output


@pytest.mark.long
def test_a_program_has_the_devices_that_it_names() -> None:
    text = "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy(['/gpu:0', '/gpu:1', '/gpu:2'])\n"
    program = run_public_programs.Program("three", text + "assert strategy.num_replicas_in_sync == 3")
    outcome = run_public_programs.run_program(program, seconds=200, devices=2, examples=10)
    assert outcome.passed, outcome.output


def test_a_program_without_end_is_stopped() -> None:
    program = run_public_programs.Program("endless", "while True: pass")
    outcome = run_public_programs.run_program(program, seconds=1, devices=1, examples=10)
    assert (outcome.passed, outcome.error) == (False, "ran longer than 1 s")


@pytest.mark.long
def test_a_module_beside_a_program_is_imported() -> None:
    text = "import beside\nassert beside.tf.constant(3) + 0 == 3"
    program = run_public_programs.Program("two files", text, {"beside.py": "import tensorflow as tf"})
    outcome = run_public_programs.run_program(program, seconds=200, devices=1, examples=10)
    assert outcome.passed, outcome.output


def test_recorded_substitutions_change_the_text(tmp_path: Path) -> None:
    sources, commit = repository(tmp_path, "a = Adam(lr=0.1)\ndata = load('here')\n")
    entry = {"repo": "someone/programs", "commit": commit, "path": "train.py", "substitutions": [["load('here')", "0"]]}
    program = run_public_programs.program_of(entry, sources, [[r"\blr=", "learning_rate="]])
    assert program.text == "a = Adam(learning_rate=0.1)\ndata = 0\n"


def test_modules_below_a_program_have_substitutions_of_their_own(tmp_path: Path) -> None:
    sources, commit = repository(tmp_path, "a = Adam(lr=0.1)\n")
    entry = {
        "repo": "someone/programs", "commit": commit, "path": "train.py",
        "modules": {"below/module.py": "train.py"}, "module_substitutions": {"below/module.py": [["Adam", "SGD"]]},
    }  # fmt: skip
    program = run_public_programs.program_of(entry, sources, [[r"\blr=", "learning_rate="]])
    assert program.text == "a = Adam(learning_rate=0.1)\n"
    assert program.modules == {"below/module.py": "a = SGD(learning_rate=0.1)\n"}


def test_a_notebook_is_one_program() -> None:
    sources = ["%matplotlib inline\nimport tensorflow as tf", "x = 1", "%%writefile other.py\ny = 2", "!ls"]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    text = json.dumps({"cells": [*cells, {"cell_type": "markdown", "source": "text"}]})
    assert run_public_programs.code_of(text).split() == "pass import tensorflow as tf x = 1 pass".split()


def test_a_substitution_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(substitutions.SubstitutionError, match="p.py has no 'missing'"):
        substitutions.substituted("text", [["missing", "x"]], "p.py")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="clone https://github.com/no/where there"):
        run_public_programs.source_of("no/where", "0" * 40, "x.py", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EPOCHS = 100", "EPOCHS = 2"),
        ("num_epochs = 1", "num_epochs = 1"),
        ("epochs_done = 100", "epochs_done = 100"),
        ("epochs, rate = (5, 3)", "epochs, rate = (5, 3)"),
        ("f('--num-epochs', default=30)", "f('--num-epochs', default=2)"),
        ("f('--rate', default=30)", "f('--rate', default=30)"),
        ("g(epochs=9, steps=9)", "g(epochs=2, steps=9)"),
    ],
)
def test_epochs_are_bounded_where_a_program_states_them(text: str, expected: str) -> None:
    assert ast.unparse(shortening.shortened(text, "p.py")) == expected


def test_devices_of_the_control_are_cpus() -> None:
    assert shortening.on_cpus("['/gpu:0', \"GPU:1\", 'my_gpu: 3']") == "['/CPU:0', \"CPU:1\", 'my_gpu: 3']"
    assert shortening.on_cpus("list_logical_devices('GPU')") == "list_logical_devices('CPU')"
    assert shortening.on_cpus('list_logical_devices(device_type="GPU")') == 'list_logical_devices(device_type="CPU")'
    assert shortening.on_cpus("list_physical_devices('GPU')") == "list_physical_devices('GPU')"


def test_the_page_of_tallies_is_the_one_that_the_tool_writes() -> None:
    assert write_tallies.PAGE.read_text(encoding="utf-8") == write_tallies.page()
