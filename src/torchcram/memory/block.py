"""One layer: working memory on every token, and for each token at most one of the two other memories."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.config import (
    BlockConfig,
    ContradictionConfig,
    EpisodicConfig,
    RouterConfig,
    SemanticConfig,
    WorkingConfig,
)
from torchcram.memory.compiling import compile_layer
from torchcram.memory.contradiction import ContradictionIndex, Guidance, Pointer
from torchcram.memory.episodic import EpisodicMemory, Reading, nothing_before, smooth
from torchcram.memory.foresight import Foresight
from torchcram.memory.joint import Map, column_beside, side_by_side
from torchcram.memory.lessons import Evidence, choose_witnesses
from torchcram.memory.losses import (
    Counts,
    best_quality,
    consolidation_losses,
    priority_loss,
    routing_losses,
    worth_telling,
)
from torchcram.memory.precision import Norm, narrow
from torchcram.memory.quality import QualityEstimator
from torchcram.memory.router import EPISODIC, SEMANTIC, Decision, Router, RoutingPolicy
from torchcram.memory.semantic import SemanticMemory
from torchcram.memory.state import BlockState, IndexState
from torchcram.memory.store import Room, Slots, Store
from torchcram.memory.timeline import Timeline
from torchcram.memory.together import Material
from torchcram.memory.utility import Trial, try_reads
from torchcram.memory.working import WorkingMemory
from torchcram.ops import About, add_rows, gather_rows, scatter_rows
from torchcram.ops.rows import fixed, longest

_SIZES = 32  # that a layer is compiled for at most: phases of training and room for lists make several
_OTHERS = 0.25  # of the tokens that do not ask for anything: witnesses, where all read


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockOutput:
    """What a layer did in one call. Gradients go through `x`, `state`, `trial`, `losses` and `material` alone."""

    x: Tensor
    """[B, N, D]: the residual stream after the layer."""
    state: BlockState | None
    decision: Decision
    quality: Tensor
    """[B, N]: the q the router saw."""
    reading: Reading | None
    """The reads computed: of tokens that use theirs, and audits; None in a layer without a buffer."""
    exact: Tensor | None
    """[B, R]: the true q of the reads computed; None where nothing is read or recalled, or `policy.verify` is off."""
    reads: Tensor
    """[B, N] bool: the read was executed and counts as one (audits apart)."""
    audits: Tensor
    """[B, N] bool: the read was executed only to learn from it."""
    writes: Tensor
    """[B, N] bool: the position entered the buffer."""
    guidance: Guidance | None
    """What a contradiction index told, this layer's own or one below; None without one."""
    seen: Tensor
    """[B, N, D]: what the layer's memories saw of each token."""
    taps: Tensor | None
    """[B, N, W, D]: with a convolution, what that was made of: each token and those just before it."""
    evidence: Evidence | None
    """In training: what the reads of the index's witnesses rest on."""
    trial: Trial | None
    """Reads of which a part was used, to find out what they are worth."""
    losses: dict[str, Tensor]
    """The layer's own losses, in training only; see `Block.forward`. Where all layers of a stack learn from their reads
    at once, the last has those of all, added up."""
    needed: Tensor | None = None
    """[2]: rows and events that the longest lists would have held, given enough room; None if it was not said."""
    material: Material | None = None
    """What the layer did not learn from in this call, since the caller does for all layers at once."""

    @property
    def pairs(self) -> Tensor | None:
        """[B]: query-event pairs scored, for reads, audits and evidence; None in a layer without a buffer."""
        if self.reading is None:
            return None
        return self.reading.pairs if self.evidence is None else self.reading.pairs + self.evidence.pairs


class Block(nn.Module):
    """u = norm(x); x ← x + CT(u) + 1[episodic] r^E + 1[semantic] r^S; x ← x + FFN(norm(x)), if there is one.

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
        guided: bool = False,
        witnesses: int = 1,
    ) -> None:
        """`contradiction`: the layer has an index of its own; `guided`: it heeds one, its own or one below.

        witnesses: layers that the index of its own learns from.
        """
        super().__init__()
        width = block.width
        self.norm_memory = Norm(width)
        self.working = WorkingMemory(width, working)
        rank = semantic.rank or router.hidden
        self.predictor = Foresight(width, rank)
        self.episodic = EpisodicMemory(width, episodic) if episodic is not None else None
        taps = episodic.convolution if episodic is not None else 1
        self.index = ContradictionIndex(width, contradiction, witnesses, taps) if contradiction is not None else None
        self.semantic = SemanticMemory(width, semantic) if semantic.rank else None
        self.quality = QualityEstimator(width, semantic.rank, router) if semantic.rank else None
        self.exact = router.quality == "exact" and self.episodic is not None and self.semantic is not None
        self.router = Router(
            width,
            router if semantic.rank else dataclasses.replace(router, sharpness=0.0),
            guided=guided or contradiction is not None,
        )
        hidden = block.feed_forward
        self.norm_feed = Norm(width) if hidden else None
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) if hidden else None

    def initial_state(self, batch: int) -> BlockState:
        """The state before anything was seen."""
        # Only their kind: where weights are sharded, `new_zeros` would be too; and this one is never made narrow.
        like = self.working.rate
        width, rank = like.shape[0], self.predictor.rank
        return BlockState(
            working=torch.zeros(batch, width, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device),
            prediction=torch.zeros(batch, 1, rank, dtype=like.dtype, device=like.device),
            recent=nothing_before(batch, self.episodic.taps) if self.episodic is not None else None,
            episodic=self.episodic.empty(batch) if self.episodic is not None else None,
            index=self.index.empty(batch) if self.index is not None else None,
        )

    def forward(
        self,
        x: Tensor,
        timeline: Timeline,
        state: BlockState | None = None,
        policy: RoutingPolicy | None = None,
        *,
        forced: Tensor | None = None,
        priority: Tensor | None = None,
        noise: Tensor | None = None,
        guidance: Guidance | None = None,
        room: Room | None = None,
        keep_state: bool = True,
        in_place: bool = False,
        apart: bool = False,
    ) -> BlockOutput:
        """x [B, N, D]; `forced` [B, N] overrides the router's actions; `guidance`: of a layer below that has an index.

        priority [B, N]: what events are written with instead of the layer's own, before the sigmoid.
        noise [B, N, 5 or 8]: what `policy.noise` made for this layer, if the policy has `draws`; layers of a stack that
        are not given one would all sample alike. room: for how many rows and events a sequence has room; what is
        beyond is left out, so `BlockOutput.needed` is to be compared with it. in_place, with one position of each
        sequence: `state`, which must have all slots there can be, is changed and returned. apart, in training: what is
        learned from reads is left to the caller, who is given `material` instead of losses and q of what was read (see
        `together`).

        In training, `losses` holds `consolidation` (eq. 5, relative to the reads' mean square), `quality` (q̂ against
        q), `uncertainty` (of working memory's prediction), `priority` (σ(w) against the attention received), with
        `rule="worth"` and trials `utility` (û against what reads turned out to be worth), and the
        mean per token of π² (`reads`) and of -π³·q (`recall`). All are to be made small; `consolidation.Consolidator`
        weighs them.
        """
        policy = policy or RoutingPolicy()
        width = self.working.outward.weight.shape[0]
        if x.shape != (*timeline.mask.shape, width):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected {(*timeline.mask.shape, width)}, as the timeline is"
            )
        if in_place and (
            self.training or state is None or x.shape[1] != 1 or policy.keep_all or self.router.on_hit is not None
        ):
            raise ValueError(
                "in_place is for one position of each sequence, from a state, at evaluation, without an index"
            )
        if policy.keep_all and keep_state:
            raise ValueError("policy.keep_all leaves no state to go on from: pass keep_state=False")
        room = None if room is None else Room(*map(fixed, room))
        state = self.initial_state(x.shape[0]) if state is None else state
        x = timeline.clean(x)
        u = narrow(self.norm_memory(x))
        h, working_state, square = self.working.advance(u, timeline, state.working)
        context, from_working, told = self._of_working(h, timeline)
        surprise, prediction = self.predictor.surprise(u, h, timeline, state.prediction, told)
        seen, taps, recent = u, None, None
        if state.recent is not None and self.episodic is not None and self.episodic.taps is not None:
            before, recent = timeline.previous(u, state.recent)
            seen = smooth(u, before, self.episodic.taps)
            if self.index is not None:
                taps = torch.cat([u.unsqueeze(2), before], dim=2)
        thought, to_quality, to_router, to_priority = self._of_tokens(u, seen)
        if noise is None:
            (noise,) = policy.noise(*timeline.mask.shape, guided=self.index is not None or guidance is not None)
        if self.index is not None and state.index is not None:
            guidance = self._consult(self.index, seen, taps, timeline, state.index, policy, noise, keep=keep_state)
        store: Store | Slots | None = None
        if self.episodic is not None and state.episodic is not None and to_priority is not None:
            assert from_working is not None
            own = self.episodic.priority_of(to_priority, from_working)
            if priority is not None:
                # What is given, to the last bit; the rest is for gradients.
                own = priority.to(own.dtype) + (own - own.detach())
            offered = seen, h, own, timeline, state.episodic
            if in_place:
                store = Slots.open(self.episodic, *offered)
            else:
                store = Store.open(self.episodic, *offered, guidance, keep_all=policy.keep_all)

        reading = None
        if self.quality is None or self.semantic is None or thought is None:
            quality = torch.zeros_like(surprise)
        elif self.exact and store is not None:
            reading = store.read(timeline.mask, None, None, room, keep=keep_state)
            true = self.quality.exact(self.semantic(gather_rows(u, reading.rows)), reading.value)
            quality = scatter_rows(true, reading.rows, x.shape[1])
        else:
            # It learns from tokens that read, for which it is made once more.
            with torch.no_grad():
                quality = torch.sigmoid(self.quality.logit(u, thought, self.semantic.up, to_quality))
        logits = self.router(to_router, About(timeline.log_gap, square, quality, surprise))
        able = (True, store is not None, thought is not None)
        hits = guidance.hits if guidance is not None else None
        chance = policy.audit if guidance is None else guidance.chance
        worth = None
        if self.router.worth is not None and store is not None:
            worth = self.router.worth(seen, timeline.log_gap, self.router.heard(quality), surprise, hits)
        decision = self.router.decide(logits, timeline.mask, policy, forced, able, noise, guidance, worth)
        weights = decision.weights.to(x.dtype)
        reads, audits = decision.actions == EPISODIC, decision.audited
        if self.exact and store is not None:
            reads, audits = timeline.mask, torch.zeros_like(audits)
        elif store is not None:
            pointer = guidance.pointer if guidance is not None else None
            readers = None
            if policy.reads != "dense":
                readers = reads | audits
                if guidance is not None and guidance.witnesses is not None:
                    # They may be told what a read of theirs would rest on without ever reading.
                    readers = readers | scatter_rows(guidance.witnesses.valid, guidance.witnesses, x.shape[1])
            reading = store.read(reads | audits, readers, pointer, room, keep=keep_state)

        recalled, judged, exact = None, None, None
        if self.training and self.quality is not None and reading is not None:
            self.quality.reads.observe(reading.value, reading.rows.valid, reading.rows.listed)
        verify = (self.training or policy.verify or policy.trial > 0) and not apart
        if self.semantic is not None and self.quality is not None and reading is not None and verify:
            # What they learn from reads shapes these two alone, not the tokens that are recalled from.
            token = gather_rows(u, reading.rows).detach()
            remembered = self.semantic.down(token)
            recalled = self.semantic.up(nn.functional.relu(remembered))
            if self.training:
                judged = None if self.exact else self.quality.logit(token, remembered, self.semantic.up)
            exact = self.quality.exact(recalled, reading.value)

        x = x + context
        if self.semantic is not None and thought is not None:
            # Whether a token recalls is decided while its thought is narrow: r^S need not be kept for the way back.
            x = x + self.semantic.up(weights[..., SEMANTIC, None] * nn.functional.relu(thought))
        if reading is not None:
            share = weights[..., EPISODIC]
            if policy.audit > 0 and not policy.trial:
                # An audit weighs exactly 0, but its gradient reaches π² as if all tokens like it had been computed.
                share = torch.where(audits, share / (chance.to(share) if isinstance(chance, Tensor) else chance), share)
            used = gather_rows(share, reading.rows).unsqueeze(-1) * reading.value
            x = add_rows(x, used, reading.rows)
        trial, valued = None, None
        if policy.trial > 0 and reading is not None:
            x, trial, valued = self._try(x, reading, recalled, decision, worth, policy)
        if self.feed is not None and self.norm_feed is not None:
            x = x + self.feed(self.norm_feed(x))
        x = timeline.clean(x)

        needed = None
        if room is not None and reading is not None and reading.listed is not None:
            needed = torch.stack([longest(reading.rows), reading.listed.useful])
        losses, material = {}, None
        if apart and isinstance(store, Store) and reading is not None:
            material = Material.of(u, h, state.prediction, reading, store.written, decision, quality)
        elif self.training:
            mask = timeline.mask
            assert not isinstance(store, Slots)
            written = store.written if store is not None else None
            counts = Counts.of(mask, reading, written, padded=timeline.padded)
            losses["uncertainty"] = self.predictor.loss(u, h, surprise, timeline, state.prediction, counts.tokens)
            if store is not None and reading is not None:
                known = quality
                if self.quality is not None and recalled is not None and exact is not None:
                    found = recalled, reading.value, reading.rows.valid, exact, judged
                    losses |= consolidation_losses(*found, self.quality.unit, counts.reads)
                    known = best_quality(quality, exact, reading.rows)
                if valued is not None and worth is not None:
                    losses["utility"] = valued
                of_new = store.written.priority[:, -x.shape[1] :], reading.mass[:, -x.shape[1] :]
                losses["priority"] = priority_loss(*of_new, worth_telling(store.written), counts.events)
                losses |= routing_losses(decision.probabilities, known, mask, counts.tokens)
        new_state = None
        if in_place:
            new_state = state
            state.working.copy_(working_state)
            state.prediction.copy_(prediction)
            if state.recent is not None and recent is not None:
                state.recent.copy_(recent)
            if store is not None and reading is not None:
                store.keep(reading)
        elif keep_state:
            new_state = BlockState(
                working=working_state,
                prediction=prediction,
                recent=recent,
                episodic=store.keep(reading) if store is not None and reading is not None else None,
                index=guidance.consulted.state if self.index and guidance and guidance.consulted else None,
            )
        # What is only looked at has no gradients: a compiled layer would be given zeros for each of them.
        return BlockOutput(
            x=x,
            state=new_state,
            decision=decision.detached(),
            quality=quality,
            reading=reading.detached() if reading is not None else None,
            exact=exact,
            reads=reads,
            audits=audits,
            writes=store.admitted if store is not None else torch.zeros_like(reads),
            guidance=guidance,
            seen=seen.detach(),
            taps=taps.detach() if taps is not None else None,
            evidence=store.evidence(guidance, reading, reads) if store is not None and guidance is not None else None,
            trial=trial,
            losses=losses,
            needed=needed,
            material=material,
        )

    def compile_parts(self) -> None:
        """Compile the layer: as a whole, if it is given `room` for its lists; but for what an index of its own does."""
        if self.index is not None:
            self._consult = torch.compiler.disable(self._consult)  # type: ignore
        torch._dynamo.config.recompile_limit = max(_SIZES, torch._dynamo.config.recompile_limit)
        compile_layer(self)

    def _consult(
        self,
        index: ContradictionIndex,
        seen: Tensor,
        taps: Tensor | None,
        timeline: Timeline,
        state: IndexState,
        policy: RoutingPolicy,
        noise: Tensor | None,
        *,
        keep: bool,
    ) -> Guidance:
        """What the index says of a call; while all is kept, there is nothing to look up yet, but all to learn."""
        mask = timeline.mask
        lot = policy.lot(mask, noise)
        roles = index.roles(seen, mask, taps)
        consulted, hits, pointer = None, None, None
        if not policy.keep_all:
            consulted = index.consult(seen, timeline, state, roles, taps, keep=keep)
            hits, pointer = consulted.target >= 0, Pointer(consulted.target, consulted.here)
            if self.training:
                # Every other read is not pointed at anything, so that attention is kept in practice.
                unaided = ~policy.points(mask, noise)
                pointer = Pointer(*(part.masked_fill(unaided, -1) for part in pointer))
        audit = plain = lot < policy.audit
        chance: Tensor | float = policy.audit
        witnesses = None
        if self.training and policy.lesson:
            # Where all read anyway, it may as well learn from many that do not ask.
            others = _OTHERS if policy.reads == "dense" else policy.audit
            audit, chance, witnesses = choose_witnesses(roles[0], mask, lot, others, policy.answered)
        return Guidance(consulted, hits, pointer, audit, plain, chance, witnesses)

    def _try(
        self,
        x: Tensor,
        reading: Reading,
        recalled: Tensor | None,
        decision: Decision,
        worth: Tensor | None,
        policy: RoutingPolicy,
    ) -> tuple[Tensor, Trial, Tensor]:
        """Have the backward pass tell what reads on trial are worth; see `try_reads`."""
        rows = reading.rows
        change = reading.value
        if recalled is not None:
            recalls = gather_rows(decision.instead == SEMANTIC, rows)
            change = change - recalls.unsqueeze(-1) * recalled
        estimate = torch.ones_like(change[..., 0]) if worth is None else gather_rows(worth, rows)
        tried, audited = (gather_rows(those, rows) for those in (decision.tried, decision.audited))
        return try_reads(x, estimate, rows, change, tried, audited, policy.scored, policy.most)

    def _of_tokens(self, u: Tensor, seen: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """What u brings to mind, before its ReLU [B, N, R], and what the estimate of quality makes of it.

        And what router and write priority make of what is seen. That is one product, or two where that is not u. The
        estimate's part is made here only where nothing is learned, since it has no gradient.
        """
        semantic = Map(self.semantic.down.weight) if self.semantic is not None else None
        judged = None
        if self.quality is not None and not torch.is_grad_enabled() and torch.compiler.is_compiling():
            judged = self.quality.of_token
        priority = self.episodic.of_token if self.episodic is not None else None
        of_u, of_seen = (semantic, judged), (self.router.of_token, priority)
        if seen is u:
            found = iter(side_by_side(u, *(each for each in (*of_u, *of_seen) if each is not None)))
        else:
            inputs = zip((u, seen), (of_u, of_seen), strict=True)
            found = iter(
                [y for x, maps in inputs for y in side_by_side(x, *(each for each in maps if each is not None))]
            )
        thought, own, to_router, to_priority = (None if each is None else next(found) for each in (*of_u, *of_seen))
        return thought, own, to_router, to_priority

    def _of_working(self, h: Tensor, timeline: Timeline) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What h brings to the residual stream [B, N, D], and to the priority of a write [B, N, 1].

        Compiled, it is one product with what is told of the next position [B, N, R], if nothing is learned; else that
        and the priority are one.
        """
        outward = Map(self.working.outward.weight)
        priority = self.episodic.of_working if self.episodic is not None else None
        if not torch.compiler.is_compiling():
            return outward(h), None if priority is None else priority(h), None
        told = self.predictor.telling
        if torch.is_grad_enabled():
            if priority is None:
                return outward(h), None, None
            others = () if self.predictor.learns_from_all(timeline) else (told,)
            of_priority, known = column_beside(h, priority.weight, *others)
            return outward(h), of_priority, known[0] if known else None
        # The single column last: what is wide begins where memory is read at once.
        context, of_next, *rest = side_by_side(h, outward, told, *(() if priority is None else (priority,)))
        return context, next(iter(rest), None), of_next
