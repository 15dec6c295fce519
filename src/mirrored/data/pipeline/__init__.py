"""The class `Dataset`: the subset of `tf.data.Dataset` that training loops use, built on Grain.

Its import registers `Dataset` with the distribution of datasets, which does not import this package.
"""

from __future__ import annotations

from mirrored.data.pipeline.dataset_source import source_of_arrays as source_of_arrays
