"""mirrored without `function`: every operation of every replica at once."""

from __future__ import annotations

import functools

from contenders import mirrored_training

train = functools.partial(mirrored_training.train, compiled=False)
