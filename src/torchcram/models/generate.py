"""Continue token sequences, one token at a time, from an explicit state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcram.ledger import Ledger
from torchcram.memory.router import RoutingPolicy
from torchcram.memory.state import CramState, SequenceState

if TYPE_CHECKING:
    from torchcram.models.decoder import Decoder
    from torchcram.models.sequence import SequenceModel


_FEW = 16  # steps


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Tokens that were added, and where the sequences stand now."""

    tokens: Tensor
    """[B, steps]; after a sequence's stop token, the stop token again."""
    state: SequenceState
    """After the last added token but one: pass it on together with `tokens[:, -1:]`."""
    ledger: Ledger
    """Of the prompt and all added tokens."""


def generate(
    model: SequenceModel[Any, Any],
    tokens: Tensor,
    steps: int,
    *,
    dt: Tensor | None,
    mask: Tensor | None,
    state: SequenceState | None,
    step_dt: float,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: int | None,
    seed: int | None,
) -> Generation:
    """Add `steps` tokens to each prompt; tokens [B, N], padded anywhere if `mask` says so.

    `temperature` 0 takes the likeliest token; above 0 samples, from the `top_k` likeliest and from the smallest set
    whose probabilities reach `top_p`, if given; `seed` makes that repeatable. Each added token comes `step_dt` after
    the one before. A sequence that produced `stop` adds nothing more to its memories.
    """
    head = _token_head(model)
    _check(
        steps=steps,
        step_dt=step_dt,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        vocabulary=head[1],
    )
    generator = torch.Generator(tokens.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    was_training = model.training
    model.eval()
    try:
        policy = RoutingPolicy(verify=False)
        out = model(tokens, dt=dt, mask=mask, state=state, policy=policy, last=True)
        if not bool(out.timeline.mask.any(1).all()):
            raise ValueError("a prompt is all padding; each needs at least one real token")
        ledger = out.ledger()
        logits = out.predictions[head[0]].squeeze(1)
        going = torch.ones(tokens.shape[0], dtype=torch.bool, device=tokens.device)
        gap = torch.full((tokens.shape[0],), step_dt, device=tokens.device)
        walk = _walk(model, out.state, steps)
        added = []
        for step in range(steps):
            token = _sample(logits, temperature, top_k, top_p, generator)
            if stop is not None:
                token = torch.where(going, token, stop)
            added.append(token)
            if step + 1 == steps:
                break
            going = going & (token != stop) if stop is not None else going
            logits = walk.step(token, gap, going)[head[0]]
        executed = walk.ledger()
        ledger = ledger if executed is None else ledger + executed
    finally:
        model.train(was_training)
    return Generation(tokens=torch.stack(added, dim=1), state=walk.snapshot(), ledger=ledger)


class _Calls:
    """A call of the model for each position: for models that a `Decoder` does not suit."""

    def __init__(self, model: SequenceModel[Any, Any], state: SequenceState) -> None:
        self.model, self.state = model, state
        self._ledger: Ledger | None = None

    def step(self, token: Tensor, dt: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Predictions [B, size] after one more token [B]."""
        out = self.model(token.unsqueeze(1), dt=dt.unsqueeze(1), mask=mask.unsqueeze(1), state=self.state)
        self.state = out.state
        self._ledger = out.ledger() if self._ledger is None else self._ledger + out.ledger()
        return {name: x[:, -1] for name, x in out.predictions.items()}

    def ledger(self) -> Ledger | None:
        """What was executed, if anything was."""
        return self._ledger

    def snapshot(self) -> SequenceState:
        """Where the sequences stand."""
        return self.state


def _walk(model: SequenceModel[Any, Any], state: SequenceState, steps: int) -> _Calls | Decoder:
    """Whatever goes on from a state by one position at a time."""
    from torchcram.models.cram import Cram
    from torchcram.models.decoder import Decoder

    # On a GPU a decoder records its step first, which takes the time of several.
    few = model.norm.weight.is_cuda and steps <= _FEW
    if isinstance(model, Cram) and isinstance(state, CramState) and Decoder.suits(model) and not few:
        return Decoder(model, state)
    return _Calls(model, state)


def _token_head(model: SequenceModel[Any, Any]) -> tuple[str, int]:
    """Name and vocabulary of the head that predicts the next token."""
    fields = model.config.inputs.tokens
    heads = [o for o in model.config.outputs if o.kind == "tokens"]
    if len(fields) != 1 or model.config.inputs.channels or len(heads) != 1 or heads[0].size != fields[0].vocabulary:
        raise ValueError(
            "generate needs a model with one token field as input and one 'tokens' head of the same vocabulary"
        )
    return heads[0].name, heads[0].size


def _check(
    *,
    steps: int,
    step_dt: float,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    stop: int | None,
    vocabulary: int,
) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps = {steps} is not possible; allowed: at least 1")
    if not 0 <= step_dt < math.inf:
        raise ValueError(f"step_dt = {step_dt} is not possible; allowed: finite and at least 0")
    if not temperature >= 0:
        raise ValueError(f"temperature = {temperature} is not possible; allowed: 0 (likeliest token) or above")
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise ValueError("top_k and top_p choose what to sample from; they need temperature above 0")
    if top_k is not None and (not isinstance(top_k, int) or not 1 <= top_k <= vocabulary):
        raise ValueError(f"top_k = {top_k} is not possible; allowed: 1 to {vocabulary}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p = {top_p} is not possible; allowed: above 0 and at most 1")
    if stop is not None and (not isinstance(stop, int) or not 0 <= stop < vocabulary):
        raise ValueError(f"stop = {stop} is not possible; allowed: 0 to {vocabulary - 1}")


def _sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """One token a row, [B]."""
    if temperature == 0:
        return logits.argmax(-1)
    if not bool(logits.isfinite().all()):
        raise ValueError("the model's predictions are not finite; there is nothing to sample from")
    ordered, tokens = logits.float().sort(dim=-1, descending=True)
    ordered = (ordered - ordered[:, :1]) / temperature  # from the likeliest down: no temperature overflows
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    probabilities = ordered.softmax(-1)
    if top_p is not None:
        # Keep a token as long as those before it do not reach top_p: the likeliest is always kept.
        probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, 0)
    choice = torch.multinomial(probabilities, 1, generator=generator)
    return tokens.gather(1, choice).squeeze(1)
