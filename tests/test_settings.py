"""The environment variables: one table, checked at import, read nowhere else."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest

from fresh_process import run_python
from mirrored import settings
from mirrored.errors import ArgumentError

SOURCE = Path(settings.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "settings.md"
SECONDS = [one for one in settings.ALL if one.name.endswith("_SECONDS")]
COUNTS = [settings.VIRTUAL_DEVICES, settings.NODES]


@pytest.mark.parametrize("setting", SECONDS, ids=lambda one: one.name)
@pytest.mark.parametrize("text", ["abc", "-1", "0", "nan", "inf", "-inf", "1e300", "1,5", "0x10", "9999999999", "10 s"])
def test_seconds_outside_the_rule_name_the_variable(setting, text):
    with pytest.raises(ArgumentError, match=f"(?s){setting.name}={text}: .*rule: +{setting.name} must be a .*seconds"):
        setting.read({setting.name: text})


@pytest.mark.parametrize("setting", COUNTS, ids=lambda one: one.name)
@pytest.mark.parametrize("text", ["four", "0", "-1", "2.5", "1_0", "\u0663"])
def test_counts_outside_the_rule_name_the_variable(setting, text):
    with pytest.raises(ArgumentError, match=f"{setting.name}={text}: .*\n.*an int, 1 or more"):
        setting.read({setting.name: text})


@pytest.mark.parametrize("setting", [settings.HEARTBEAT_SECONDS, settings.RENDEZVOUS_SECONDS], ids=lambda one: one.name)
def test_whole_seconds_take_no_fraction(setting):
    with pytest.raises(ArgumentError, match="a whole number of seconds"):
        setting.read({setting.name: "0.7"})


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda one: one.name)
def test_the_example_is_inside_the_rule_and_empty_is_the_default(setting):
    assert setting.read({setting.name: f" {setting.example} "}) == setting.parse(setting.example)
    assert setting.read({setting.name: ""}) == setting.read({}) == setting.default


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.AGREEMENT_SECONDS, "0.5", 0.5),
        (settings.WATCHDOG_SECONDS, "1e3", 1000.0),
        (settings.VIRTUAL_KIND, "gpu", "GPU"),
    ],
)
def test_values_have_their_types(setting, text, value):
    read = setting.read({setting.name: text})
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("setting", settings.ALL, ids=lambda one: one.name)
def test_a_wrong_value_ends_the_program_at_import(setting):
    done = run_python("import mirrored", **{setting.name: "0.7.1"})
    assert done.returncode == 1
    assert f"ArgumentError: {setting.name}={'...' if setting.hidden else '0.7.1'}: " in done.stderr


def test_a_misspelled_variable_is_told():
    message = "MIRRORED_WATCHDOG_SECOND is unknown(?s:.*)did you mean MIRRORED_WATCHDOG_SECONDS"
    with pytest.warns(UserWarning, match=message):
        settings.check({"MIRRORED_WATCHDOG_SECOND": "5"})


def test_a_variable_of_another_program_is_none_of_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.check({"MIRRORED_SERVICE_HOST": "10.0.0.1", "PATH": "/bin"})


def test_settings_do_not_need_jax():
    done = run_python("import mirrored.settings, sys; print('jax' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def strings(path: Path) -> list[ast.Constant]:
    """The string constants of a module but for docstrings and parts of longer texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
    ]


@pytest.mark.long
def test_no_other_module_spells_a_variable_of_ours():
    names = {setting.name for setting in settings.ALL}
    spelled = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if path.name != "settings.py"
        for node in strings(path)
        if node.value in names
    ]
    assert spelled == []


ENVIRONMENTS = ("os.environ", "_os.environ", "environment")
READERS = {"os.getenv", *(f"{owner}.{method}" for owner in ENVIRONMENTS for method in ("get", "setdefault", "pop"))}


def environment_names(path: Path) -> list[str]:
    """The names that a module reads from or writes to the environment literally."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ENVIRONMENTS:
            found.append(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in READERS:
            found.append(node.args[0])
    return [node.value for node in found if isinstance(node, ast.Constant)]


@pytest.mark.long
def test_variables_of_other_programs_are_listed():
    prefixes = tuple(name.removesuffix("*") for name in settings.FOREIGN)
    used = {name for path in SOURCE.rglob("*.py") for name in environment_names(path)}
    assert used
    assert {name for name in used if not name.startswith(prefixes)} == set()


def rows(section: str) -> dict[str, str]:
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def test_the_page_has_every_variable():
    own, _, foreign = PAGE.read_text(encoding="utf-8").partition("## Variables of other programs")
    own_rows = rows(own)
    assert set(own_rows) == {setting.name for setting in settings.ALL}
    for setting in settings.ALL:
        assert setting.rule in own_rows[setting.name]
        assert setting.meaning in own_rows[setting.name]
    assert {name: meaning in rows(foreign)[name] for name, meaning in settings.FOREIGN.items()} == dict.fromkeys(
        settings.FOREIGN, True
    )
