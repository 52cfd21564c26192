"""Whole models against each other: CRAM with a given share of reads, and another with as many parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.bench.timing import at_best, compare, wait_for
from torchcram.config import CramConfig, ModelConfig
from torchcram.consolidation import ConsolidationConfig, Consolidator
from torchcram.draws import Draws
from torchcram.memory import EPISODIC, SEMANTIC, RoutingPolicy
from torchcram.models import AnyModel, baseline, build, parameters
from torchcram.ops import Lengths
from torchcram.results import Row

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

    def __init__(self, config: ModelConfig, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        self.size, self.device = size, device
        self.model: AnyModel = build(config).to(device)
        self.model.check_values = False
        if size.compile:
            for block in self.model.blocks:
                block.compile_parts()  # type: ignore[operator]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.consolidator = Consolidator(ConsolidationConfig())
        self.lengths = Lengths()

    def train(self, tokens: Tensor, policy: RoutingPolicy) -> Callable[[], None]:
        """A training step, the optimizer's part included."""
        count = tokens.numel()

        def step() -> None:
            self.model.train()
            with self._cast():
                with self.lengths.kept():
                    out = self.model(tokens, policy=policy, keep_state=False)
                loss = self.consolidator.loss(out.losses, positions=count, scored=count)
                loss = loss + nn.functional.cross_entropy(out.predictions["tokens"].flatten(0, 1), tokens.flatten())
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()
            self._finish()

        return step

    def prefill(self, tokens: Tensor, policy: RoutingPolicy) -> Callable[[], None]:
        """A forward pass that leaves the state to go on from, and the prediction of the next token."""

        def forward() -> None:
            self.model.eval()
            with torch.no_grad(), self._cast(), self.lengths.kept():
                self.model(tokens, policy=policy)
            self._finish()

        return forward

    def _finish(self) -> None:
        """Wait for the device, and see that lists had room: from the second call on they have, as all are alike."""
        self.lengths.fit(self.lengths.needed.tolist())
        wait_for(self.device)

    def _cast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.size.bf16)


def run(
    what: str, size: Size, lengths: Sequence[int], device: str, *, against: str = "transformer", repeats: int = 7
) -> Iterator[Row]:
    """CRAM against another model at each length: `what` is `train` or `prefill`."""
    place, training = torch.device(device), what == "train"
    config = size.cram()
    rival = baseline(against, config)
    for length in lengths:
        batch = max(1, size.tokens // length)
        tokens = torch.randint(size.vocabulary, (batch, length), device=place)
        policies = imposed(size, batch, length, config.layers, place, training=training), RoutingPolicy()
        pair = [Contender(each, size, place) for each in (config, rival)]
        ours, theirs = (
            (each.train if training else each.prefill)(tokens, policy)
            for each, policy in zip(pair, policies, strict=True)
        )
        attention, theirs = at_best(theirs, place) if against == "transformer" else ("ours, in PyTorch", theirs)
        yield compare(
            what,
            ours,
            theirs,
            against=f"{against}, {attention}",
            length=length,
            repeats=repeats,
            warm_up=3 if place.type == "cuda" else 1,
            batch=batch,
            slots=size.slots,
            reads=size.reads,
            audits=size.audit if training else 0.0,
            bf16=size.bf16,
            compile=size.compile,
            parameters=parameters(config),
            baseline_parameters=parameters(rival),
        )


def imposed(size: Size, batch: int, length: int, layers: int, device: torch.device, *, training: bool) -> RoutingPolicy:
    """Reads at random positions, as many as are wanted in every layer; all others recall."""
    chance = torch.rand(batch, length, layers, generator=torch.Generator().manual_seed(0))
    actions = torch.where(chance < size.reads, EPISODIC, SEMANTIC).to(device)
    if not training:
        return RoutingPolicy(actions=actions)
    draws = Draws(seed=0, step=0, rows=torch.arange(batch, device=device))
    return RoutingPolicy(actions=actions, audit=size.audit, temperature=_TEMPERATURE, lesson=False, draws=draws)
