"""mirrored, compiled, with the same bits on any number of devices."""

from __future__ import annotations

import functools

from contenders import mirrored_training

train = functools.partial(mirrored_training.train, deterministic=True)
all_reduce = functools.partial(mirrored_training.all_reduce, deterministic=True)
