"""Several processes: torchrun starts them, DDP or FSDP2 keeps their models alike. Models know nothing of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from torchcram import processes
from torchcram.memory import BlockOutput, ContradictionIndex
from torchcram.models import AnyModel, CramOutput
from torchcram.models.baselines.stack import BaselineLayer, BaselineOutput
from torchcram.strict import check_choice, reject
from torchcram.tasks import Examples
from torchcram.training.config import RunConfig

Parallel = Literal["ddp", "fsdp"]
"""`ddp`: every process holds the whole model; `fsdp`: parameters, gradients and moments are sharded (FSDP2)."""

LossOf = Callable[[Examples], Tensor]


class PeerError(ValueError):
    """Another process could not go on, and has said why."""

    told = True


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among those that train together; by default it is alone."""

    device: torch.device
    rank: int = 0
    size: int = 1
    parallel: Parallel = "ddp"

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def check(self, config: RunConfig) -> None:
        """Refuse batches that the processes cannot share evenly."""
        for name in ("batch", "evaluate_rows"):
            if getattr(config, name) % self.size:
                reject(name, getattr(config, name), f"a multiple of the number of processes, which is {self.size}")

    def sharing(self) -> AbstractContextManager[None]:
        """While open, sums over a batch go over all processes."""
        alone = self.size == 1
        return processes.sharing(
            None if alone else processes.Sharing(rank=self.rank, size=self.size, add_up=dist.all_reduce)
        )

    def spread(self, model: AnyModel, loss_of: LossOf) -> LossOf:
        """`loss_of`, such that its backward pass leaves the same gradients in all processes: the mean of theirs.

        Call it before an optimizer is made: FSDP2 puts other parameters in the place of the model's.
        """
        if self.size == 1:
            return loss_of
        if self.parallel == "fsdp":
            _shard(model, self)
            return loss_of
        # Which parameters a loss reaches differs between the phases of training.
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        spread: Callable[..., Tensor] = nn.parallel.DistributedDataParallel(
            _Step(model, loss_of), find_unused_parameters=True
        )
        return spread

    def whole(self, x: Tensor) -> Tensor:
        """A tensor that may be sharded, put together; the same in all processes."""
        if self.size == 1 or not isinstance(x, _dtensor()):
            return x
        whole: Tensor = x.full_tensor()
        return whole

    def mean(self, x: Tensor) -> Tensor:
        """The mean over the processes."""
        with self.sharing():
            return x if self.size == 1 else processes.total(x) / self.size

    def any(self, flag: bool) -> bool:
        """Whether any process says so; all get the same answer."""
        return self._reduce(int(flag), "MAX") > 0

    def from_first(self, number: int) -> int:
        """The number that the first process gives."""
        return self._reduce(number if self.first else 0, "SUM")

    @contextmanager
    def together(self) -> Iterator[None]:
        """If one process fails inside, none goes on: it raises its error, the others a `PeerError`.

        Nothing inside may wait for another process.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        lowest = self._reduce(self.size if failure is None else self.rank, "MIN")
        if failure is not None and lowest == self.rank:
            raise failure
        if lowest < self.size:
            raise PeerError(f"process {lowest} could not go on") from failure

    def _reduce(self, number: int, how: Literal["MAX", "MIN", "SUM"]) -> int:
        if self.size == 1:
            return number
        held = torch.tensor(number, device=self.device)
        dist.all_reduce(held, getattr(dist.ReduceOp, how))
        return int(held)


@contextmanager
def launched(device: str, parallel: str = "ddp") -> Iterator[World]:
    """The world that torchrun has started this process in; without torchrun, this process alone."""
    check_choice("parallel", parallel, Parallel)
    where = torch.device(device)
    if not dist.is_available() or not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        yield World(device=where)
        return
    cuda = where.type == "cuda"
    if cuda:
        here, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if ":" in device:
            reject("device", device, "'cuda' without a number when there are several processes: each takes its own")
        if here >= there:
            raise ValueError(f"process {here} of this machine has no GPU of its own: there are {there}")
        where = torch.device("cuda", here)
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if cuda else "gloo", device_id=where if cuda else None)
    try:
        yield World(device=where, rank=dist.get_rank(), size=dist.get_world_size(), parallel=cast(Parallel, parallel))
    finally:
        dist.destroy_process_group()


class _Step(nn.Module):
    """Model and loss as one module: DDP looks at what a module returns to know which parameters will get a gradient."""

    def __init__(self, model: AnyModel, loss_of: LossOf) -> None:
        super().__init__()
        self.model = model
        self.loss_of = loss_of

    def forward(self, examples: Examples) -> Tensor:
        return self.loss_of(examples)


def _shard(model: AnyModel, world: World) -> None:
    """Shard each layer by itself, then what is left."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(world.device.type, (world.size,))  # by default all would be moved to a GPU if there is one
    _tell_of_outputs()
    # No output of a layer is changed in place, which is what it warns of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for block in model.blocks:
        index = getattr(block, "index", None)
        if isinstance(index, ContradictionIndex):  # it is asked and taught by methods of its own
            fully_shard(index, mesh=mesh)
            for method in ("roles", "consult", "loss"):
                register_fsdp_forward_method(index, method)
        fully_shard(block, mesh=mesh)
    # Resharded after the forward pass too, or evaluations would leave whole parameters in the place of the shards.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


@cache
def _tell_of_outputs() -> None:
    """FSDP2 looks for tensors in what a module returns; torch 2.11 has to be told of dataclasses, and only once."""
    for output in (BlockOutput, CramOutput, BaselineLayer, BaselineOutput):
        torch.export.register_dataclass(output)


def _dtensor() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor
