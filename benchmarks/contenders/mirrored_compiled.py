"""mirrored, compiled by `mirrored.function`."""

from __future__ import annotations

from contenders.mirrored_training import all_reduce as all_reduce
from contenders.mirrored_training import eager_tape as eager_tape
from contenders.mirrored_training import train as train
