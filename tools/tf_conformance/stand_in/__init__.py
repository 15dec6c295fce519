"""A stand-in for the package `tensorflow`, with the modules that TensorFlow's unit tests import, over `mirrored.tf`.

What TensorFlow documents comes from the facade. Private names come from the tables of this package where a public name
does the same; all others raise `MissingNameError` where a test uses them.
"""
