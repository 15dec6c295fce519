"""PyTorch by `torch.compile`, on one device."""

from __future__ import annotations

import functools

from contenders import torch_ddp

train = functools.partial(torch_ddp.train, compiled=True)
