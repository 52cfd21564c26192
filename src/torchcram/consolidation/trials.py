"""Consolidation in a loop that measures nothing for it: what reads turn out to be worth stands in for losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchcram import processes
from torchcram.consolidation.config import ConsolidationConfig
from torchcram.consolidation.consolidator import Consolidator
from torchcram.memory import BlockOutput, RoutingPolicy
from torchcram.ops import gather_rows
from torchcram.strict import reject

_LOSS = "loss"  # the only one there is, whatever heads it is made of
_KEPT = 0.5  # of what was lost, from check to check: it may be lost by a few tokens, which audits find now and then


class TrialConsolidator(Consolidator):
    """A `Consolidator` without held-out data: it goes by the reads on trial (`memory/utility.py`).

        consolidator = TrialConsolidator(ConsolidationConfig(signal="utility", lessons=1))
        for batch in batches:
            consolidator.count()
            policy = consolidator.policy(scored=batch.scored)
            for layer in layers:
                out = layer(x, timeline, policy=policy, keep_state=False)
                consolidator.watch(out, policy, first=layer is layers[0])
                ...
            ...                                          # loss, backward, optimizer step

    Reads on trial are a random sample: while all read, of those used; later, by audits, of those not made. The sum of
    what they are worth, divided by the chance to be in the sample, tells how much higher the loss would be without
    reads, and later how much higher it is for lack of them. Each is tried as if it alone came or went: reads that can
    stand in for each other count too little while used, and too much once none of them is made.
    """

    def __init__(self, config: ConsolidationConfig) -> None:
        super().__init__(config)
        if config.schedule != "adaptive":
            reject("consolidation.schedule", config.schedule, "'adaptive' where trials decide")
        if config.signal != "utility":
            reject("consolidation.signal", config.signal, "'utility' where trials decide")
        for name in ("trial", "audit"):
            if getattr(config, name) == 0:
                reject(f"consolidation.{name}", 0, "a share above 0 where trials decide")
        # The sum of what backward passes told, and how many did.
        self._told = torch.zeros(2, dtype=torch.float64)

    def count(self) -> None:
        """Count a step, before its forward pass; if a check is due, release or adjust the pressure."""
        if self.step(self.losses) is not None:
            acquired = self.released_at in (None, self.steps)
            self._told = self._told * (0.0 if acquired else _KEPT)

    def watch(self, out: BlockOutput, policy: RoutingPolicy, *, first: bool) -> None:
        """Let the backward pass tell what a layer's reads on trial are worth; `first`: of the layers of a step."""
        if out.trial is None or not out.trial.probe.requires_grad:
            return
        audited = gather_rows(out.decision.audited, out.trial.rows)
        dense = policy.reads == "dense"
        sampled = out.trial.tried & (audited | dense)
        chance = policy.trial * (1 - policy.skip) if dense else policy.audit
        worth = out.trial.worth

        def tell(_: Tensor) -> None:
            # Worths are in nats by a factor of `scored`; the loss has its own unit back.
            total = worth.double().masked_fill(~sampled, 0).sum() / (chance * policy.scored)
            found = torch.stack([total, torch.full_like(total, float(first))])
            self._told = self._told.to(found.device) + torch.where(total.isfinite(), found, 0)

        out.trial.probe.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]

    def losses(self, policy: RoutingPolicy) -> dict[str, float]:
        """The loss under a policy, less what it would be without reads, as trials told since the last check."""
        total, passes = processes.total(self._told).tolist()
        told = total / passes if passes else 0.0
        if self.released_at is None:
            return {_LOSS: 0.0 if policy.reads == "off" else -told}
        # The level as it was at release: since then only what routing adds to it is known.
        return {_LOSS: self.controller.at_release[_LOSS] + (told if policy.reads == "routed" else 0.0)}

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as JSON-ready data."""
        return {**super().state_dict(), "told": self._told.tolist()}

    def load_state_dict(self, data: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(data)
        self._told = torch.tensor(data["told"], dtype=torch.float64)
