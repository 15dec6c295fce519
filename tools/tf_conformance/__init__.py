"""Runs TensorFlow's own unit tests on `mirrored.tf`.

The test files are TensorFlow's and are not part of this project: the tool reads them from a folder. `stand_in` is a
package `tensorflow` over `mirrored.tf`, `scope.json` lists the tests that are out of scope with reasons, by test ids.
"""
