"""The progress bar in a notebook without `ipywidgets` prints lines, and rich emits no warning."""

from __future__ import annotations

import importlib.util
import io
import warnings

import rich.console

import mirrored as mr


def test_a_notebook_without_widgets_gets_lines_and_no_warning(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    console = rich.console.Console(file=io.StringIO())
    console.is_jupyter = True
    lines: list[str] = []
    monkeypatch.setattr(console, "print", lambda text, **_: lines.append(text))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bar = mr.progress([1, 2], description="epoch", console=console)
        for x in bar:
            bar.show(loss=x)
    assert lines == ["epoch: 2 of 2 steps, loss 2"]
