"""One layer: working memory on every token, and for each token at most one of the two other memories."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.config import (
    BlockConfig,
    ContradictionConfig,
    EpisodicConfig,
    RouterConfig,
    SemanticConfig,
    WorkingConfig,
)
from torchcram.memory.contradiction import Lesson
from torchcram.memory.episodic import EpisodicMemory, Reading, Written, first_rows
from torchcram.memory.losses import (
    Counts,
    best_quality,
    consolidation_losses,
    mean_row,
    priority_loss,
    routing_losses,
)
from torchcram.memory.quality import QualityEstimator
from torchcram.memory.router import EPISODIC, SEMANTIC, Decision, Router, RoutingPolicy
from torchcram.memory.semantic import SemanticMemory
from torchcram.memory.state import BlockState, EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.memory.utility import learn_worth
from torchcram.memory.working import WorkingMemory
from torchcram.ops import Events, Rows, compact, gather_rows, scatter_rows

_LESSONS, _EVENTS = 64, 128  # reads and events of a sequence that teach the contradiction index
_AUDITED = 3.0  # how much more an audit counts there: it stands for many
_WORTH = 0.05  # nats: a token whose read is worth less can do without


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockOutput:
    """What a layer did in one call."""

    x: Tensor
    """[B, N, D]: the residual stream after the layer."""
    state: BlockState | None
    decision: Decision
    quality: Tensor
    """[B, N]: the q the router saw."""
    reading: Reading | None
    """The reads computed: of tokens that use theirs, and audits; None in a layer without a buffer."""
    exact: Tensor | None
    """[B, R]: the true q of the reads computed; None where nothing is read or recalled."""
    reads: Tensor
    """[B, N] bool: the read was executed and counts as one (audits apart)."""
    audits: Tensor
    """[B, N] bool: the read was executed only to learn from it."""
    writes: Tensor
    """[B, N] bool: the position entered the buffer."""
    hits: Tensor | None
    """[B, N] bool: the token asks for an event that semantic memory does not know; None if none was looked for."""
    compared: Tensor | None
    """[B]: pairs of a token and an entry of that index that were compared."""
    losses: dict[str, Tensor]
    """The layer's own losses, in training only; see `Block.forward`."""


class Block(nn.Module):
    """u = norm(x); x ← x + CT(u) + 1[episodic] r^E + 1[semantic] r^S; x ← x + FFN(norm(x)).

    A layer of its own, usable in any stack: give it a `Timeline` and the state it returned last time (None: nothing was
    seen yet).
    """

    def __init__(
        self,
        *,
        block: BlockConfig,
        working: WorkingConfig,
        episodic: EpisodicConfig | None,
        semantic: SemanticConfig,
        router: RouterConfig,
        contradiction: ContradictionConfig | None = None,
    ) -> None:
        super().__init__()
        width = block.width
        self.norm_memory = nn.RMSNorm(width)
        self.working = WorkingMemory(width, working)
        rank = semantic.rank or router.hidden
        self.predictor = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))
        # Where nothing is recalled nothing can contradict, and with exact quality every token reads anyway.
        index = contradiction if semantic.rank and router.quality == "predicted" else None
        self.episodic = EpisodicMemory(width, episodic, index) if episodic is not None else None
        self.semantic = SemanticMemory(width, semantic) if semantic.rank else None
        self.quality = QualityEstimator(width, semantic.rank, router) if semantic.rank else None
        self.exact = router.quality == "exact" and self.episodic is not None and self.semantic is not None
        self.router = Router(
            width,
            router if semantic.rank else dataclasses.replace(router, sharpness=0.0),
            index=self.episodic is not None and self.episodic.index is not None,
        )
        self.norm_feed = nn.RMSNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, block.feed_forward), nn.GELU(), nn.Linear(block.feed_forward, width))

    def initial_state(self, batch: int) -> BlockState:
        """The state before anything was seen."""
        like = self.working.outward.weight  # only its kind: where weights are sharded, `new_zeros` would be too
        width = like.shape[0]
        taps = self.episodic.config.convolution if self.episodic is not None else 1
        return BlockState(
            working=torch.zeros(batch, width, dtype=like.dtype, device=like.device),
            prediction=torch.zeros(batch, 1, width, dtype=like.dtype, device=like.device),
            recent=torch.zeros(batch, taps - 1, width, dtype=like.dtype, device=like.device) if taps > 1 else None,
            episodic=self.episodic.empty(batch) if self.episodic is not None else None,
        )

    def forward(
        self,
        x: Tensor,
        timeline: Timeline,
        state: BlockState | None = None,
        policy: RoutingPolicy | None = None,
        *,
        forced: Tensor | None = None,
        noise: Tensor | None = None,
        keep_state: bool = True,
    ) -> BlockOutput:
        """x [B, N, D]; `forced` [B, N] overrides the router's actions.

        noise [B, N, 5]: what `policy.noise` made for this layer, if the policy has `draws`; layers of a stack that
        are not given one would all sample alike.

        In training, `losses` holds `consolidation` (eq. 5, relative to the reads' mean square), `quality` (q̂ against
        q), `uncertainty` (of working memory's prediction), `priority` (σ(w) against the attention received), and the
        mean per token of π² (`reads`) and of -π³·q (`recall`). All are to be made small; `consolidation.Consolidator`
        weighs them.
        """
        policy = policy or RoutingPolicy()
        width = self.working.outward.weight.shape[0]
        if x.shape != (*timeline.mask.shape, width):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected {(*timeline.mask.shape, width)}, as the timeline is"
            )
        if policy.keep_all and keep_state:
            raise ValueError("policy.keep_all leaves no state to go on from: pass keep_state=False")
        state = self.initial_state(x.shape[0]) if state is None else state
        x = timeline.clean(x)
        u = self.norm_memory(x)
        context, h, working_state = self.working(u, timeline, state.working)
        surprise, prediction = self._surprise(u, h, timeline, state.prediction)
        recalled = self.semantic(u) if self.semantic is not None else None
        store = _Store.open(self.episodic, u, h, timeline, state, keep_all=policy.keep_all)

        reading, estimate = None, None
        if self.quality is None or recalled is None:
            quality = torch.zeros_like(surprise)
        elif self.exact and store is not None:
            reading = self._read(store, timeline.mask)
            true = self.quality.exact(gather_rows(recalled, reading.rows), reading.value)
            quality = scatter_rows(true, reading.rows, x.shape[1])
        else:
            estimate = self.quality.logit(u, recalled)
            quality = torch.sigmoid(estimate.detach())
        norm = h.detach().square().mean(-1).sqrt()
        logits = self.router(u, timeline.log_gap, norm, quality, surprise.detach())
        if noise is None:
            (noise,) = policy.noise(*timeline.mask.shape)
        able = (True, store is not None, recalled is not None)
        hits = store.written.hits if store is not None else None
        decision = self.router.decide(logits, timeline.mask, policy, forced, able, noise, hits)
        weights = decision.weights.to(x.dtype)
        reads, audits = decision.actions == EPISODIC, decision.audited
        if self.exact and store is not None:
            reads, audits = timeline.mask, torch.zeros_like(audits)
        elif store is not None:
            reading = self._read(store, reads | audits)

        exact = None
        if self.quality is not None and recalled is not None and reading is not None:
            if self.training:
                self.quality.observe(reading.value, reading.rows.valid)
            exact = self.quality.exact(gather_rows(recalled, reading.rows), reading.value)

        x = x + context
        if recalled is not None:
            x = x + weights[..., SEMANTIC, None] * recalled
        if reading is not None:
            share = weights[..., EPISODIC]
            if policy.audit > 0:
                # An audit weighs exactly 0, but its gradient reaches π² as if all tokens like it had been computed.
                share = torch.where(audits, share / policy.audit, share)
            used = gather_rows(share, reading.rows).unsqueeze(-1) * reading.value
            x = x + scatter_rows(used, reading.rows, x.shape[1])
        taught = None
        marked = store is not None and store.written.marks is not None
        if self.training and marked and store and reading and recalled is not None:
            x, taught = self._teach_index(x, store, reading, recalled, decision, policy, noise)
        x = x + self.feed(self.norm_feed(x))
        x = timeline.clean(x)

        losses = {}
        if self.training:
            mask = timeline.mask
            counts = Counts.of(mask, reading, store.written if store is not None else None)
            losses["uncertainty"] = timeline.clean(surprise).sum() / counts.tokens
            if store is not None and reading is not None:
                known = quality
                if self.semantic is not None and self.quality is not None and exact is not None:
                    # Consolidation shapes semantic memory alone, not the tokens it recalls from.
                    recall = self.semantic(gather_rows(u, reading.rows).detach())
                    losses |= consolidation_losses(recall, reading, exact, estimate, self.quality, counts)
                    known = best_quality(quality, exact, reading)
                if taught is not None:
                    losses["contradiction"] = taught
                losses["priority"] = priority_loss(store.written, reading, counts)
                losses |= routing_losses(decision, known, mask, counts)
        new_state = None
        if keep_state:
            new_state = BlockState(
                working=working_state,
                prediction=prediction,
                recent=store.recent if store is not None else None,
                episodic=store.keep(reading) if store is not None and reading is not None else None,
            )
        return BlockOutput(
            x=x,
            state=new_state,
            decision=decision,
            quality=quality,
            reading=reading,
            exact=exact,
            reads=reads,
            audits=audits,
            writes=store.written.slot >= 0 if store is not None else torch.zeros_like(reads),
            hits=hits,
            compared=store.written.compared if store is not None else None,
            losses=losses,
        )

    def compile_parts(self) -> None:
        """Compile what comes before and after the read, whose number of rows is known only when it happens.

        Evictions are left out as well: sorting and counting, of which a compiler makes nothing better.
        """
        if self.episodic is not None:
            self.episodic.evictions = torch.compiler.disable(self.episodic.evictions)  # type: ignore
            if self.episodic.index is not None:
                self.episodic.index.look = torch.compiler.disable(self.episodic.index.look)  # type: ignore
                self.episodic.index.consult = torch.compiler.disable(self.episodic.index.consult)  # type: ignore
                self._teach_index = torch.compiler.disable(self._teach_index)  # type: ignore
        self._read = torch.compiler.disable(self._read)  # type: ignore[method-assign, no-untyped-call]
        self.compile()

    def _read(self, store: _Store, chosen: Tensor) -> Reading:
        return store.read(chosen)

    def _teach_index(
        self,
        x: Tensor,
        store: _Store,
        reading: Reading,
        recalled: Tensor,
        decision: Decision,
        policy: RoutingPolicy,
        noise: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """What this call's reads teach the contradiction index: a few of them, chosen at random, audits first.

        Returns x, whose gradient will say what audited reads would have been worth, and the loss.
        """
        memory, written, untaken = store.memory, store.written, decision.untaken
        assert memory.index is not None
        assert written.marks is not None
        assert untaken is not None
        held = store.before.slots
        audited = gather_rows(decision.audited | untaken.halved, reading.rows)
        chance = gather_rows(policy.chances(store.timeline.mask, noise), reading.rows) - audited.double()
        rows, chosen = first_rows(reading.rows, chance, _LESSONS)
        picked = Rows(chosen, rows.valid)
        audited = gather_rows(audited, picked)
        hope = gather_rows(written.asked[:, held:].detach(), written.marks.rows)
        events, likeliest = first_rows(written.marks.rows, -hope, _EVENTS)
        code = gather_rows(written.marks.code, Rows(likeliest, events.valid))
        value = gather_rows(written.value[:, held:], events)
        with torch.no_grad():
            shares = memory.shares(store.seen, store.h, rows, store.timeline, written)[..., held:]
            shares = shares.gather(2, events.at.unsqueeze(1).expand(-1, shares.shape[1], -1))
            shares = shares.masked_fill(~events.valid.unsqueeze(1), 0)
            share, best = shares.max(-1)
            rests = share > 0.5
            weight = torch.where(audited, _AUDITED, 1.0) * rows.valid
            read = gather_rows(reading.value, picked)
            # Recalled is what came at least halfway from what such reads give on average to what this one gave.
            spread = read - mean_row(read, weight * rests)
            same = (gather_rows(recalled, rows) - read).square().sum(-1) < spread.square().sum(-1) / 2
            found = gather_rows(value, Rows(best, rows.valid))
            off = (found.flatten(2) - mean_row(found.flatten(2), weight * rests)).square().mean(-1, keepdim=True)
            seen = Events(events.at, gather_rows(written.events.expires[:, held:], events), events.at)
            size = found.flatten(2).square().mean(-1, keepdim=True)  # the spread of one or two values means nothing
            usual = torch.maximum(mean_row(off, weight * rests), mean_row(size, weight * rests) / 4)
            made = written.hits
            judged = audited if policy.scored is not None else torch.zeros_like(audited)
            lesson = Lesson(
                u=gather_rows(store.seen, rows),
                weight=weight,
                best=best,
                rests=rests,
                rival=seen.readable(rows) & (shares < 0.1),
                same=same,
                # A token that the index alone made read may have been made so in error.
                told=~judged if made is None else ~judged & (same | ~gather_rows(made & ~untaken.wanted, rows)),
                usual=torch.where(usual > 0, usual, 1.0),
            )
        known = memory.index.known(gather_rows(code, Rows(best, rows.valid)), found)
        loss = memory.index.loss(written.marks._replace(rows=events, code=code), known, found, lesson)
        if policy.scored is not None:
            recall = gather_rows(untaken.instead == SEMANTIC, rows).unsqueeze(-1) * gather_rows(recalled, rows)
            change = read - recall
            weight = weight * rests
            size = processes.per_process(processes.total(weight.sum()))
            least = torch.as_tensor(_WORTH / policy.scored, device=x.device)
            x, nothing = learn_worth(x, known, rows, change, weight * judged / size, least)
            loss = loss + nothing
        return x, loss

    def _surprise(self, u: Tensor, h: Tensor, timeline: Timeline, carried: Tensor) -> tuple[Tensor, Tensor]:
        """How badly each input was predicted from the position before [B, N], and the prediction to carry on."""
        prediction = self.predictor(h.detach())
        expected, carried = timeline.previous(prediction, carried)
        return (u.detach() - expected.squeeze(2)).square().mean(-1), carried


@dataclass(frozen=True, kw_only=True)
class _Store:
    """A layer's buffer during one call: written to once, then read by whoever may."""

    memory: EpisodicMemory
    seen: Tensor
    h: Tensor
    timeline: Timeline
    before: EpisodicState
    written: Written
    recent: Tensor | None

    @classmethod
    def open(
        cls,
        memory: EpisodicMemory | None,
        u: Tensor,
        h: Tensor,
        timeline: Timeline,
        state: BlockState,
        *,
        keep_all: bool,
    ) -> _Store | None:
        """None for a layer without a buffer."""
        if memory is None or state.episodic is None:
            return None
        seen, recent = u, None
        if state.recent is not None:
            taps, recent = timeline.previous(u, state.recent)
            seen = memory.smooth(u, taps)
        written = memory.write(seen, h, timeline, state.episodic, keep_all=keep_all)
        return cls(
            memory=memory,
            seen=seen,
            h=h,
            timeline=timeline,
            before=state.episodic,
            written=written,
            recent=recent,
        )

    def read(self, chosen: Tensor) -> Reading:
        """The reads of the positions where `chosen` [B, N] is True."""
        return self.memory.read(self.seen, self.h, compact(chosen), self.timeline, self.written)

    def keep(self, reading: Reading) -> EpisodicState:
        """The buffer for the next call."""
        return self.memory.keep(self.written, reading, self.before)
