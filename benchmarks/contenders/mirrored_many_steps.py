"""mirrored with ten steps in one call."""

from __future__ import annotations

import functools

from contenders import mirrored_training

train = functools.partial(mirrored_training.train, steps_per_call=10)
