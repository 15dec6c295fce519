#!/usr/bin/env python
"""Runs TensorFlow's own unit tests on `mirrored.tf`, and counts what passes.

    python tools/tf_conformance.py PATH/TO/tensorflow/python --report report.md
    python tools/tf_conformance.py PATH/TO/tensorflow/python --files distribute/strategy_gather_test.py --verbose

The path is the folder `tensorflow/python` of a copy of TensorFlow's source tree (its test files and
`framework/test_combinations.py`, `distribute/strategy_test_lib.py`). Every file runs in its own process on four
simulated devices; the tests for two workers run in two processes. `tf_conformance/scope.json` lists the files that are
the goal and the test ids that are out of scope, each with a reason. The report gives two rates: of the cases in scope,
and of all cases that TensorFlow itself would not skip.
"""

from __future__ import annotations

from tf_conformance.cli import main

if __name__ == "__main__":
    main()
