"""PyTorch: DistributedDataParallel, one process per replica (gloo on CPU, NCCL on GPU), eager. One replica: no DDP.

On a GPU it has what JAX has: TF32 in float32 matrix products and a fused optimizer.

The other ranks are processes of this same file; rank 0 tells them how many calls follow.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from spec import BETA_1, BETA_2, CHAIN, EPSILON, LEARNING_RATE, WORKLOADS, Workload, chain
from spec import workload as named

from contenders.job import Job

_GPU = torch.cuda.is_available()
if _GPU:
    torch.set_float32_matmul_precision("high")


class ops:
    relu = staticmethod(torch.relu)

    @staticmethod
    def dense(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    @staticmethod
    def gelu(x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    @staticmethod
    def images(x: Any) -> Any:
        return x.permute(0, 3, 1, 2)

    @staticmethod
    def conv(x: Any, w: Any, b: Any, stride: int) -> Any:
        before = 2 - stride  # "SAME" pads a strided convolution behind only
        return F.conv2d(F.pad(x, (before, 1, before, 1)), w, b, stride=stride)

    @staticmethod
    def mean_of_pixels(x: Any) -> Any:
        return x.mean((2, 3))

    @staticmethod
    def norm(x: Any, g: Any, b: Any) -> Any:
        return F.layer_norm(x, x.shape[-1:], g, b, 1e-5)

    @staticmethod
    def look_up(table: Any, ids: Any) -> Any:
        return F.embedding(ids, table)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype))

    @staticmethod
    def attention(qkv: Any, heads: int) -> Any:
        length, width = qkv.shape[-2], qkv.shape[-1] // 3
        q, k, v = (part.reshape(-1, length, heads, width // heads).transpose(1, 2) for part in qkv.split(width, -1))
        result = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return result.transpose(1, 2).reshape(-1, length, width)

    fused_attention = attention


class Network(torch.nn.Module):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        parameters = workload.parameters()
        self.names = list(parameters)
        tensors = [torch.from_numpy(value) for value in parameters.values()]
        kept = [t.permute(3, 2, 0, 1).contiguous() if t.dim() == 4 else t for t in tensors]
        self.values = torch.nn.ParameterList([torch.nn.Parameter(t) for t in kept])

    def forward(self, x: Any, y: Any) -> Any:
        named = dict(zip(self.names, self.values, strict=True))
        logits = self.workload.network.logits(ops, named, x).float()
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def _step_of(workload: Workload, rank: int, devices: int, compiled: bool = False) -> Callable[[], Any]:
    device = torch.device(f"cuda:{rank}" if _GPU else "cpu")
    network: Any = Network(workload).to(device)
    if devices > 1:
        network = torch.nn.parallel.DistributedDataParallel(network)
    if compiled:
        network = torch.compile(network)
    settings: Any = {"lr": LEARNING_RATE, "betas": (BETA_1, BETA_2), "eps": EPSILON, "fused": _GPU or None}
    parameters = list(network.parameters())
    if workload.decay:
        optimizer: Any = torch.optim.AdamW(parameters, weight_decay=workload.decay, **settings)
    else:
        optimizer = torch.optim.Adam(parameters, **settings)
    x, y = (torch.from_numpy(array).chunk(devices)[rank].to(device) for array in workload.examples())
    x, y = x.contiguous() if x.is_floating_point() else x.long(), y.long()
    steps = 0

    def step() -> Any:
        nonlocal steps
        steps += 1
        # The specification's epsilon is not corrected for bias, PyTorch's is.
        optimizer.param_groups[0]["eps"] = EPSILON / (1 - BETA_2**steps) ** 0.5
        optimizer.zero_grad(set_to_none=True)
        loss = network(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _reduce_of(rank: int, mib: int) -> Callable[[], None]:
    x = torch.zeros(mib << 18, device=f"cuda:{rank}" if _GPU else "cpu")
    return lambda: dist.all_reduce(x)


def _call_of(what: dict[str, Any], rank: int) -> Callable[[], Any]:
    if what["job"] == "train":
        step = _step_of(named(what["workload"]), rank, what["devices"])
        return lambda: float(step())
    return _reduce_of(rank, what["mib"])


def _join(what: dict[str, Any], rank: int, meeting: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // what["devices"]))
    dist.init_process_group(
        "nccl" if _GPU else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=what["devices"],
        timeout=timedelta(minutes=3),
    )


def _tell(calls: int) -> int:
    count = torch.tensor([calls], device="cuda" if _GPU else "cpu")
    dist.broadcast(count, 0)
    return int(count)


def _lead(what: dict[str, Any]) -> Job:
    if what["devices"] == 1:
        return Job(_call_of(what, 0))
    meeting = os.path.join(tempfile.mkdtemp(), "meeting")
    others = [
        subprocess.Popen([sys.executable, __file__, json.dumps(what), str(rank), meeting], stdout=subprocess.DEVNULL)
        for rank in range(1, what["devices"])
    ]
    _join(what, 0, meeting)

    def end() -> None:
        _tell(0)
        for process in others:
            process.wait(30)

    atexit.register(end)
    return Job(_call_of(what, 0), before=lambda calls: _tell(calls) and None)


def _follow(what: dict[str, Any], rank: int, meeting: str) -> None:
    _join(what, rank, meeting)
    call = _call_of(what, rank)
    while calls := _tell(0):
        for _ in range(calls):
            call()


def _peak() -> dict[str, Any]:
    return {"peak_mib": torch.cuda.max_memory_allocated() / 2**20} if _GPU else {}


def _synchronize(_: Any = None) -> None:
    if _GPU:
        torch.cuda.synchronize()


def train(workload: Workload, devices: int, *, compiled: bool = False) -> Job:
    """A training step; the loss is this replica's. `compiled`: by `torch.compile`, on one device."""
    if devices == 1:
        if _GPU:
            torch.cuda.reset_peak_memory_stats()
        step = _step_of(workload, 0, 1, compiled)
        return Job(lambda: float(step()), step, _synchronize, facts=_peak)
    name = next(name for name, one in WORKLOADS.items() if one is workload)
    return _lead({"job": "train", "workload": name, "devices": devices})


def eager_tape(workload: Workload, devices: int) -> Job:
    """The eager chain by autograd."""
    device = "cuda" if _GPU else "cpu"
    x = torch.tensor(0.05, requires_grad=True, device=device)
    w, b = torch.tensor(1.003, device=device), torch.tensor(1e-4, device=device)
    return Job(lambda: float(torch.autograd.grad(chain(x, w, b, torch.sin, torch.tanh), x)[0]), steps=CHAIN)


def all_reduce(workload: Workload, devices: int, mib: int) -> Job:
    """`all_reduce` of one buffer, in place."""
    return _lead({"job": "all_reduce", "devices": devices, "mib": mib})


if __name__ == "__main__":
    _follow(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
