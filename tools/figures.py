#!/usr/bin/env python
"""Writes the figures of the documentation, docs/figures/*.svg, from docs/figures/*.toml.

    python tools/figures.py            # writes the figures
    python tools/figures.py --check    # exit status 1 if a figure differs from its source
    python tools/figures.py --from-log logs/elastic.jsonl    # docs/figures/elastic_recovery.toml, from a job's log

A source is text: boxes in rows and columns, and arrows between them; positions and sizes follow from the text. The
packages of docs/figures/layers.svg are those of `LEVELS` in tests/test_layers.py. The tool refuses a figure in which
text overlaps or is cut off. It needs no packages.
"""

from __future__ import annotations

from figures.cli import main

if __name__ == "__main__":
    main()
