#!/usr/bin/env python
"""Draws complete training programs, and compares each with an independent implementation in single-device JAX.

    python tools/soak.py --minutes 10 --seed 1

A program is a model, a loss with weights or masks, an optimizer, a source of batches, a layout of replicas on devices,
a way of running, and an event: an interrupt, an exception in one replica, a restore on another layout, a second thread.
Losses, weights and examples must be those of one device. What differs is made as simple as possible and written as a
script that stands alone. Programs run in a process of their own, so a crash or a deadlock is a finding, too.
"""

from __future__ import annotations

from soak.cli import main

if __name__ == "__main__":
    main()
