"""Training on series that lie in memory: epochs, a check on validation samples after each, and the best one kept."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchcram.config import CramConfig
from torchcram.consolidation import ConsolidationConfig, Consolidator
from torchcram.ledger import Ledger
from torchcram.memory import RoutingPolicy
from torchcram.strict import StrictConfig, check_choice, check_flag, check_integer, check_number, reject
from torchcram.timeseries.batches import Batch, in_order, pad, shuffled
from torchcram.timeseries.metrics import log_loss
from torchcram.timeseries.network import HEAD
from torchcram.timeseries.series import UNKNOWN, Array, Series
from torchcram.timeseries.summaries import of_whole
from torchcram.timeseries.windows import overlapping
from torchcram.training import optimizer
from torchcram.training.config import OptimizerConfig
from torchcram.training.evaluate import evaluating
from torchcram.training.step import EARLY

Times = Literal["real", "order"]

_EPOCHS, _STEPS = 10, 600  # at least, where nothing is said
_CHECK = 20  # steps between checks, at least
_CHECKED = 50_000  # positions of a check, about
_AT_ONCE = 16_384  # positions of a forward pass without gradients


@dataclass(frozen=True, kw_only=True)
class FitConfig(StrictConfig):
    """How a network is trained."""

    epochs: int | None = None
    """At most; None: 10, or as many as make 600 steps of few samples."""
    patience: int = 5
    """Epochs without a better validation loss before it ends early; counted once reads have their price."""
    earliest: float = 0.0
    """Share of the steps before which no epoch is the one to be kept. A model that gives up reads has none before
    `acquire` and `ramp` are over; their sum here makes all models choose among the same epochs."""
    batch: int = 64
    """Samples a step; fewer if they are long."""
    positions: int = 8192
    """Time stamps a step, about, at most."""
    rate: float = 1e-3
    decay: float = 0.01
    balance: float = 0.0
    """0: every label counts the same, and probabilities are those of the data; 1: every class counts the same."""
    replicate: float = 0.0
    """Of a classifier that answers at a sample's last time stamp: what the answers that it would give at all of them
    count in training, their mean beside 1 for the last (target replication, Lipton et al. 2016)."""
    acquire: float = 0.4
    """Share of the steps after which reads are released, if they have not been found to help before."""
    ramp: float = 0.15
    """Share of the steps over which their price rises then."""
    tolerance: float = 0.005
    """How much worse than dense reading the model may be, in nats a label."""
    price: float = 0.02
    """The most a read may cost, in nats."""
    window: int = 512
    """Longer samples with a label a time stamp are cut to so many for training."""
    context: int | None = None
    """A time stamp's label is told from so many time stamps at most, itself among them, and from half as many or more
    where a sample has them; None: from all so far."""
    times: Times = "real"
    """`real`; or `order`: a network is not told when things were measured, only in which order."""
    seed: int = 0
    bf16: bool = False

    def __post_init__(self) -> None:
        least = {"epochs": 1, "patience": 1, "batch": 1, "positions": 1, "window": 2, "context": 2, "seed": 0}
        for name, lowest in least.items():
            if name not in ("epochs", "context") or getattr(self, name) is not None:
                check_integer(name, getattr(self, name), lowest)
        check_choice("times", self.times, Times)
        check_number("rate", self.rate, 0, open_low=True)
        check_number("decay", self.decay, 0)
        check_number("balance", self.balance, 0, 1)
        check_number("replicate", self.replicate, 0)
        check_number("acquire", self.acquire, 0, 1)
        check_number("ramp", self.ramp, 0, 1)
        check_number("earliest", self.earliest, 0, 1)
        if self.acquire + self.ramp >= 1:
            reject(
                "ramp", self.ramp, f"less than {1 - self.acquire:g}: with acquire = {self.acquire:g} nothing is left"
            )
        check_number("tolerance", self.tolerance, 0, open_low=True)
        check_number("price", self.price, 0)
        check_flag("bf16", self.bf16)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What came of one epoch."""

    number: int
    loss: float
    """Of training, mean over its batches."""
    val_loss: float
    """In nats a label."""
    reads: float | None
    """Share of the validation positions that read; None for a model without a ledger."""
    best: bool
    """Whether it is the one to be kept so far: the best of those since reads have their price, until then the last."""
    seconds: float
    """Since the beginning."""


class Fitting:
    """Fits one network; `run` tells of each epoch, and leaves the network as it was after the best one.

    A network is a module that takes a `Batch` and a `RoutingPolicy`, and returns an `Answer`. Of a model that has reads
    to give up, the best epoch is chosen among those in which reads have their price.
    """

    def __init__(
        self,
        network: nn.Module,
        train: Series,
        val: Series,
        config: FitConfig,
        *,
        unit: float = 1.0,
        device: torch.device | str = "cpu",
    ) -> None:
        """`train` and `val` on a common scale; `unit`: of time, see `pad`."""
        self.network = network.to(device)
        self.config, self.unit, self.device = config, unit, torch.device(device)
        self.rng = np.random.default_rng(config.seed)
        self.train, self.val = labelled(train), labelled(val)
        self.weights = _weights(train, config.balance)
        self.window = min(config.window, config.context or config.window)
        pieces = self._pieces(1)
        self.batch = max(1, min(config.batch, round(config.positions / float(pieces.series.lengths.mean()))))
        each = math.ceil(len(pieces.series) / self.batch)
        self.epochs = config.epochs if config.epochs is not None else max(_EPOCHS, math.ceil(_STEPS / each))
        self.steps = self.epochs * each
        adaptive = isinstance(getattr(getattr(network, "config", None), "model", None), CramConfig)
        self.consolidator = Consolidator(
            ConsolidationConfig(
                schedule="adaptive" if adaptive else "plain",
                tolerance=config.tolerance,
                price=config.price,
                ramp=max(1, round(config.ramp * self.steps)),
                check_every=max(_CHECK, each),
            )
        )
        self.optimizing = OptimizerConfig(
            rate=config.rate, decay=config.decay, warm_up=min(50, self.steps // 10), settle=1.0
        )
        self.optimizer = optimizer.build(self.network, self.optimizing)
        some = np.random.default_rng(config.seed).permutation(len(self.val))
        count = np.searchsorted(np.cumsum(self.val.lengths[some]), _CHECKED)
        self._checked = self.val.take(np.sort(some[: max(1, int(count))]))
        self._counts = torch.from_numpy(self.weights).float().to(self.device)
        cut = len(pieces.series) > len(self.train)
        wanted = getattr(getattr(network, "config", None), "features", None) == "summaries" and config.context is None
        self._summaries = of_whole(self.train, unit).to(self.device) if cut and wanted else None
        """[T, C · features], where samples are cut: a piece does not know what came before it."""

    def run(self) -> Iterator[Epoch]:
        """Train until the end, or until it gets no better."""
        c, begun = self.config, time.perf_counter()
        kept, least, since = None, math.inf, 0
        for number in range(self.epochs):
            pieces = self._pieces(int(self.rng.integers(self.window)) if number else 0)
            batches = shuffled(pieces.series.lengths, self.batch, self.rng)
            losses = [self._step(pieces, samples) for samples in batches]
            val_loss, ledger = self._loss_of(self.val)
            # Before reads have their price, a model is not yet what it will be.
            final = self.consolidator.config.schedule == "plain" or self.consolidator.progress == 1
            final = final and self.consolidator.steps >= c.earliest * self.steps
            best = math.isfinite(val_loss) and (not final or val_loss < least)
            if best:
                kept, since = copy.deepcopy(self.network.state_dict()), 0
                least = val_loss if final else math.inf
            else:
                since += 1
            yield Epoch(
                number=number + 1,
                loss=float(np.mean(losses)),
                val_loss=val_loss,
                reads=None if ledger is None else ledger.reads,
                best=best,
                seconds=time.perf_counter() - begun,
            )
            if since >= c.patience:
                break
        if kept is None:
            raise FloatingPointError("the loss was never finite; a smaller learning rate may help")
        self.network.load_state_dict(kept)

    def _step(self, pieces: _Pieces, samples: Array) -> float:
        c, step = self.config, self.consolidator.steps
        optimizer.set_rate(self.optimizer, optimizer.rate(self.optimizing, step, self.steps))
        self.network.train()
        batch = pad(pieces.series, samples, unit=self.unit, begins=pieces.begins, device=self.device)
        if self._summaries is not None:
            batch = replace(batch, summaries=self._told(pieces.rows[samples], batch.mask))
        scored = batch.scored
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.bf16):
            answer = self.network(batch, self.consolidator.policy(scored))
            loss = self._loss(answer.logits, batch)
            for logits in answer.early:
                loss = loss + EARLY / len(answer.early) * self._loss(logits, batch)
            if c.replicate and answer.along is not None:
                logits, mask = answer.along
                labels = torch.where(mask, batch.labels.unsqueeze(1), UNKNOWN)
                loss = loss + c.replicate * self._loss(logits, replace(batch, labels=labels))
            if answer.out is not None:
                positions = answer.out.timeline.mask.sum()
                loss = loss + self.consolidator.loss(answer.out.losses, positions=positions, scored=scored)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.optimizing.clip)
        if bool(norm.isfinite() & loss.isfinite()):
            self.optimizer.step()
        self.consolidator.step(lambda policy: {HEAD: self._loss_of(self._checked, policy)[0]})
        if self.consolidator.steps >= c.acquire * self.steps:
            self.consolidator.release()
        return float(loss.detach())

    def _pieces(self, phase: int) -> _Pieces:
        pieces = _pieces(self.train, self.window, phase)
        if self.config.context is None:
            return pieces
        # What came before a piece is not known where it is predicted either, not even how long ago it began.
        return pieces._replace(begins=pieces.series.times[pieces.series.offsets[:-1]])

    def _told(self, begin: Array, mask: Tensor) -> Tensor:
        """[B, N, C · features]: summaries of what came before a piece as well."""
        assert self._summaries is not None
        place = torch.arange(mask.shape[1], device=self.device).minimum((mask.sum(1, keepdim=True) - 1).clamp_min(0))
        return self._summaries[torch.from_numpy(begin).to(self.device).unsqueeze(1) + place]

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """In nats a label."""
        return nn.functional.cross_entropy(
            logits.float().flatten(0, -2), batch.labels.flatten(), weight=self._counts, ignore_index=UNKNOWN
        )

    def _loss_of(self, series: Series, policy: RoutingPolicy | None = None) -> tuple[float, Ledger | None]:
        """The same of a whole series, and what was executed."""
        probabilities, ledger = predict(
            self.network,
            series,
            unit=self.unit,
            device=self.device,
            policy=policy,
            context=self.config.context,
            bf16=self.config.bf16,
        )
        known = series.labels != UNKNOWN
        return log_loss(series.labels[known], probabilities[known], self.weights), ledger


def predict(
    network: nn.Module,
    series: Series,
    *,
    unit: float = 1.0,
    device: torch.device | str = "cpu",
    policy: RoutingPolicy | None = None,
    context: int | None = None,
    bf16: bool = False,
) -> tuple[Array, Ledger | None]:
    """Probabilities [S, K], or [T, K] for an answer a time stamp; and what was executed, of a model that counts it.

    context: see `FitConfig`.
    """
    if context is not None and series.per_step and int(series.lengths.max()) > context:
        pieces, new = overlapping(series, context)
        found, ledger = predict(network, pieces, unit=unit, device=device, policy=policy, bf16=bf16)
        return found[new], ledger
    parts: list[tuple[Array, Array]] = []
    ledger = None
    with evaluating(network), torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
        for samples in in_order(series.lengths, _AT_ONCE):
            batch = pad(series, samples, unit=unit, device=device)
            answer = network(batch, policy)
            logits, out = answer.logits, answer.out
            share = torch.softmax(logits.double(), dim=-1)
            if share.dim() == 3:
                rows = np.concatenate([np.arange(*_bounds(series, sample)) for sample in samples])
                parts.append((rows, share[batch.mask].cpu().numpy()))
            else:
                parts.append((samples, share.cpu().numpy()))
            if out is not None:
                ledger = out.ledger() if ledger is None else ledger + out.ledger()
    places = np.concatenate([place for place, _ in parts])
    probabilities = np.empty((len(places), parts[0][1].shape[1]))
    probabilities[places] = np.concatenate([share for _, share in parts])
    return probabilities, ledger


def labelled(series: Series) -> Series:
    """The samples that have a label, or a time stamp with one."""
    known = series.labels != UNKNOWN
    if series.per_step:
        known = np.logical_or.reduceat(known, series.offsets[:-1])
    return series if known.all() else series.take(np.flatnonzero(known))


def _bounds(series: Series, sample: int) -> tuple[int, int]:
    rows = series.rows(sample)
    return rows.start, rows.stop


def _weights(train: Series, balance: float) -> Array:
    """[K]: what a label of each class counts, 1 on average over the labels."""
    labels = train.labels[train.labels != UNKNOWN]
    counts = np.bincount(labels, minlength=len(train.classes)).astype(np.float64)
    weight = np.maximum(counts, 1) ** -balance
    return np.asarray(weight * counts.sum() / (weight * counts).sum())


class _Pieces(NamedTuple):
    """Samples to learn from, when those they are pieces of began, and where in the whole series each of them begins."""

    series: Series
    begins: Array
    rows: Array


def _pieces(series: Series, window: int, phase: int) -> _Pieces:
    """Long samples with a label a time stamp in pieces of at most `window`, the first of `phase` if that is not 0."""
    begins = series.times[series.offsets[:-1]]
    if not series.per_step or int(series.lengths.max()) <= window:
        return _Pieces(series, begins, series.offsets[:-1])
    starts, owner = [], []
    for sample in range(len(series)):
        begin, end = _bounds(series, sample)
        first = begin + phase if phase and end - begin > window else begin
        cuts = [begin, *(cut for cut in range(first, end, window) if cut > begin)]
        starts += cuts
        owner += [sample] * len(cuts)
    cut = labelled(
        replace(
            series,
            ids=np.arange(len(starts)),
            groups=series.groups[owner],
            offsets=np.append(starts, len(series.times)).astype(np.int64),
            statics=series.statics[owner],
        )
    )
    return _Pieces(cut, begins[owner][cut.ids], np.asarray(starts)[cut.ids])
