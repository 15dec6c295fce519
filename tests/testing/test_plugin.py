from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from mirrored.errors import ArgumentError
from mirrored.testing import plugin
from mirrored.testing.ways import select_ways


@pytest.fixture
def project(pytester, monkeypatch):
    """A project of someone else that has mirrored installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(test: str, ini: str = ""):
        pytester.makeini(f"[pytest]\naddopts = -p mirrored.testing.plugin --strict-markers\n{ini}")
        pytester.makepyfile(test)
        return pytester.runpytest_subprocess("-v")

    return run


@pytest.mark.long
def test_way_is_every_way_of_running(project):
    done = project(
        """
        import jax

        def test_way(way, strategy):
            assert len(jax.devices()) == 8
            assert strategy is way.strategy
            assert strategy.num_replicas_in_sync == way.num_replicas
            assert len(set(strategy.extended.worker_devices)) == way.num_devices
            step = way.compile(lambda x: x + 1)
            assert step(1) == 2
        """
    )
    done.assert_outcomes(passed=12)
    names = {line.partition("[")[2].partition("]")[0] for line in done.outlines if "::test_way[" in line}
    assert names == {
        *(f"eager-{n}" for n in (1, 2, 4, 8)),
        *(f"compiled-{n}" for n in (1, 2, 4, 8)),
        *(f"folded-{n}" for n in (2, 4, 8)),
        "uneven-4",
    }


@pytest.mark.long
def test_marker_chooses_ways(project):
    done = project(
        """
        import pytest

        @pytest.mark.ways(modes=("eager", "folded"), replicas=(1, 4))
        def test_way(way):
            assert way.is_eager == (way.mode == "eager")
        """
    )
    done.assert_outcomes(passed=3)


@pytest.mark.parametrize("modes", ["complied", ("eager", "complied")])
def test_unknown_modes_are_refused(modes):
    with pytest.raises(ArgumentError, match="unknown mode 'complied'"):
        select_ways(modes=modes)
    assert [spec.id for spec in select_ways(modes="compiled", replicas=(2,))] == ["compiled-2"]


def test_positional_arguments_of_the_marker_are_refused():
    marker = pytest.mark.ways("compiled").mark
    test = SimpleNamespace(fixturenames=["way"], definition=SimpleNamespace(get_closest_marker=lambda _: marker))
    with pytest.raises(ArgumentError, match="by name"):
        plugin.pytest_generate_tests(test)


@pytest.mark.long
def test_marker_without_a_way_says_so(project):
    done = project(
        """
        import pytest

        @pytest.mark.ways(modes=("folded",), replicas=(1,))
        def test_way(way):
            pass
        """
    )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*pytest.mark.ways: modes=('folded',) and replicas=(1,)*"])


@pytest.mark.long
def test_ini_option_makes_devices_before_test_modules_are_imported(project):
    done = project(
        """
        import jax
        DEVICES = jax.devices()

        def test_devices():
            assert len(DEVICES) == 3
        """,
        "mirrored_devices = 3",
    )
    done.assert_outcomes(passed=1)


@pytest.mark.long
def test_sessions_that_use_nothing_of_it_are_left_alone(project):
    done = project("import jax\n\ndef test_devices():\n    assert len(jax.devices()) == 1")
    done.assert_outcomes(passed=1)


@pytest.mark.long
def test_ini_option_out_of_rule_ends_the_session(project):
    done = project("def test_nothing():\n    pass", "mirrored_devices = many")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*mirrored_devices = many:*"])
