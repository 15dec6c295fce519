#!/usr/bin/env python
"""Draws complete training programs and compares each with an independent implementation in single-device JAX.

    python tools/soak.py --minutes 10 --seed 1

A program is a model, a loss with weights or masks, an optimizer, a source of batches, a device assignment, an execution
mode, and an event: an interrupt, an exception in one replica, a restore with another device assignment, a second
thread. Losses, weights and examples must equal those of one device. The tool shrinks a program that differs and writes
it as a standalone script. Programs run in a separate process, so that a crash or a deadlock is also a finding.
"""

from __future__ import annotations

from soak.cli import main

if __name__ == "__main__":
    main()
