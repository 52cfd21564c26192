"""Whole models against each other: CRAM with a given share of reads, and another with as many parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcram.bench.rival import fastest_space
from torchcram.bench.timing import at_best_for, compare, how_often, in_a_row, shared_out, wait_for
from torchcram.bench.turns import alone
from torchcram.config import BaselineConfig, CramConfig, ModelConfig
from torchcram.consolidation import ConsolidationConfig, Consolidator
from torchcram.draws import Draws
from torchcram.memory import EPISODIC, SEMANTIC, RoutingPolicy
from torchcram.models import AnyModel, baseline, build, parameters
from torchcram.models.recording import record
from torchcram.ops import Lengths
from torchcram.results import Row
from torchcram.training import optimizer

WARM_UP = 3
"""Calls on a GPU before one is recorded."""
SETTLE = 1
"""Rows of calls after that before any is timed."""
_TEMPERATURE = ConsolidationConfig().temperature


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is timed."""

    preset: str = "large"
    slots: int = 512
    """M, of each of CRAM's buffers."""
    reads: float = 0.015
    """Share of positions that read, in every layer."""
    audit: float = 0.03
    """In training: share of the others whose read is computed as well."""
    vocabulary: int = 4096
    tokens: int = 65_536
    """Positions of a step, or of one sequence if that is longer."""
    bf16: bool = True
    compile: bool = True

    def cram(self) -> CramConfig:
        """CRAM's config."""
        return CramConfig.preset(self.preset, vocabulary=self.vocabulary).override({"episodic.slots": self.slots})


class Contender:
    """A model that can be timed: a training step, and a forward pass."""

    def __init__(
        self, config: ModelConfig, size: Size, device: torch.device, *, beside: Contender | None = None
    ) -> None:
        """beside: one that lasts as long, whose memory is used as well: what is recorded leaves nothing there."""
        torch.manual_seed(0)
        self.size, self.device = size, device
        self.model: AnyModel = build(config).to(device)
        self.model.check_values = False
        if size.compile:
            torch.compiler.reset()  # code made for another length would become code for any
            self.model.compile_parts()
        self.entropy = _compiled_entropy() if size.compile else nn.functional.cross_entropy
        on_gpu = device.type == "cuda"
        self._memory: Any = beside._memory if beside else torch.cuda.graph_pool_handle() if on_gpu else None
        parameters = optimizer.largest_first(self.model.parameters())
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=on_gpu, capturable=on_gpu)
        self.consolidator = Consolidator(ConsolidationConfig())
        self.lengths = Lengths()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def train(self, tokens: Tensor, policy: RoutingPolicy) -> Callable[[], None]:
        """A training step, the optimizer's part included."""
        count = tokens.numel()
        self.model.train()

        def step() -> None:
            with self._cast():
                with self.lengths.kept():
                    out = self.model(tokens, policy=policy, keep_state=False)
                loss = self.consolidator.loss(out.losses, positions=count, scored=count)
                loss = loss + self.entropy(out.predictions["tokens"].flatten(0, 1), tokens.flatten())
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()

        return self._recorded(step)

    def prefill(self, tokens: Tensor, policy: RoutingPolicy) -> Callable[[], None]:
        """A forward pass that leaves the state to go on from, and the prediction of the next token."""
        self.model.eval()
        if self.size.bf16:
            self.model.narrow()

        def forward() -> None:
            with torch.no_grad(), self._cast(), self.lengths.kept():
                self.model(tokens, policy=policy, last=True)

        return self._recorded(forward)

    def _recorded(self, run: Callable[[], None]) -> Callable[[], None]:
        """The same: on a GPU recorded, after some calls that run plainly, and not waited for.

        All calls are alike, so from the second on lists have room.
        """

        def inside() -> None:
            self._calls += 1
            if self.device.type == "cuda" and self._graph is None and self._calls > WARM_UP:
                self.optimizer.zero_grad(set_to_none=True)
                self._graph, _ = record(run, self.device, warm_up=0, pool=self._memory)
            if self._graph is not None:
                self._graph.replay()
            else:
                run()
                self.lengths.fit(self.lengths.needed.tolist())
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()  # others may compile at the same time, and need it

        return inside

    def _cast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.size.bf16)


def _compiled_entropy() -> Callable[[Tensor, Tensor], Tensor]:
    """The cross entropy as the compiler makes it fastest: two passes over narrow logits, of tried-out shapes."""
    return torch.compile(
        nn.functional.cross_entropy, options={"online_softmax": False, "coordinate_descent_tuning": True}
    )


def run(
    what: str, size: Size, lengths: Sequence[int], device: str, *, against: str = "transformer", repeats: int = 7
) -> Iterator[Row]:
    """CRAM against another model at each length: `what` is `train` or `prefill`."""
    with fastest_space(torch.device(device)) as form:
        for length in lengths:
            yield _row(what, size, length, torch.device(device), against, form, repeats)


def _row(what: str, size: Size, length: int, place: torch.device, against: str, form: str, repeats: int) -> Row:
    """At one length; form: how state spaces are computed."""
    training, config = what == "train", size.cram()
    rival = baseline(against, config)
    batch = max(1, size.tokens // length)
    tokens = torch.randint(size.vocabulary, (batch, length), device=place)
    policies = imposed(size, batch, length, config.layers, place, training=training), RoutingPolicy()
    ours = Contender(config, size, place)
    pair = ours, Contender(rival, size, place, beside=ours)
    runs: list[Callable[[], object]] = [
        (each.train if training else each.prefill)(tokens, policy) for each, policy in zip(pair, policies, strict=True)
    ]
    told = form
    if against == "transformer":
        told, runs[1] = at_best_for(runs[1], attention(rival, size, batch, length, place, training=training), place)
    return compared(
        what,
        runs,
        place,
        against=f"{against}, {told}",
        length=length,
        repeats=repeats,
        batch=batch,
        slots=size.slots,
        reads=size.reads,
        audits=size.audit if training else 0.0,
        bf16=size.bf16,
        compile=size.compile,
        parameters=parameters(config),
        baseline_parameters=parameters(rival),
    )


def compared(
    what: str,
    runs: Sequence[Callable[[], object]],
    device: torch.device,
    *,
    against: str,
    length: int,
    repeats: int,
    **settings: str | int | float,
) -> Row:
    """Calls of two contenders in turns, several of each in a row; see `compare`."""
    times = settled(runs, device)
    ours, baseline = (in_a_row(run, device, often) for run, often in zip(runs, times, strict=True))
    told = {"against": against, "length": length, "repeats": repeats}
    row = compare(what, ours, baseline, **told, warm_up=0, settle=SETTLE, **settings)  # type: ignore[arg-type]
    return shared_out(row, *times)


def settled(runs: Sequence[Callable[[], object]], device: torch.device) -> list[int]:
    """How often to call each in a row, after the calls that come before a recording, and that one.

    What is recorded has memory of its own, so it is when nobody else is at work.
    """
    for run in runs:
        for _ in range(WARM_UP if device.type == "cuda" else 1):
            run()
    wait_for(device)
    with alone():
        if device.type == "cuda":
            for run in runs:
                run()
        return [how_often(run, device) for run in runs]


def attention(
    config: CramConfig | BaselineConfig, size: Size, batch: int, length: int, device: torch.device, *, training: bool
) -> Callable[[], None]:
    """What a layer of a Transformer attends, forward, and backward in training: to find the fastest way to."""
    assert isinstance(config, BaselineConfig)
    heads = config.attention.heads
    shape = (batch, length, heads, config.block.width // heads)
    dtype = torch.bfloat16 if size.bf16 else torch.float32
    query, key, value, grad = (torch.randn(shape, device=device, dtype=dtype).transpose(1, 2) for _ in range(4))
    given = [x.requires_grad_(training) for x in (query, key, value)]

    def attend() -> None:
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        if training:
            torch.autograd.grad(found, given, grad)
        wait_for(device)

    return attend


def imposed(size: Size, batch: int, length: int, layers: int, device: torch.device, *, training: bool) -> RoutingPolicy:
    """Reads at random positions, as many as are wanted in every layer; all others recall. Writes at random, too.

    What an untrained model thinks is worth keeping drifts along a sequence, and in some layers nearly all is written.
    """
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(batch, length, layers, generator=generator)
    priorities = torch.randn(batch, length, layers, generator=generator).to(device)
    actions = torch.where(chance < size.reads, EPISODIC, SEMANTIC).to(device)
    if not training:
        return RoutingPolicy(actions=actions, priorities=priorities, verify=False)
    return RoutingPolicy(
        actions=actions,
        priorities=priorities,
        audit=size.audit,
        temperature=_TEMPERATURE,
        lesson=False,
        draws=Draws(seed=0, step=0, rows=torch.arange(batch, device=device)),
    )
