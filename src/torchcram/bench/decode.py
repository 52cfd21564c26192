"""One token after another: CRAM in place, against a Transformer with a cache of all keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from torchcram.bench.timing import at_best, compare, copy_bandwidth, waiting
from torchcram.bench.whole import Size
from torchcram.config import CramConfig
from torchcram.models import Baseline, Cram, Decoder, baseline, build, parameters
from torchcram.models.baselines.attention import Attention
from torchcram.models.inputs import Batch
from torchcram.models.recording import record
from torchcram.results import Row

_CHUNK = 2048  # positions of a context fed at once


def run(
    sizes: Sequence[Size], lengths: Sequence[int], batches: Sequence[int], device: str, repeats: int = 50
) -> Iterator[Row]:
    """A step of both after contexts of each length, for batches of each size; the sizes differ in CRAM's buffers."""
    place = torch.device(device)
    bandwidth = copy_bandwidth(place)
    for batch in batches:
        for length in lengths:
            for size in sizes:
                yield _row(size, batch, length, place, bandwidth, repeats)


def _row(size: Size, batch: int, length: int, place: torch.device, bandwidth: float, repeats: int) -> Row:
    config = size.cram()
    rival = baseline("transformer", config)
    ours = _decoder(config, size, batch, length, place)
    theirs = CachedTransformer(_made(rival, size, place), batch, length)
    tokens = torch.randint(size.vocabulary, (batch,), device=place)
    one = waiting(partial(ours.step, tokens), place)
    attention, best = at_best(waiting(partial(theirs.step, tokens), place), place, theirs.forget)
    row = compare(
        "decode",
        one,
        best,
        against=f"transformer, {attention}",
        length=length,
        repeats=repeats,
        batch=batch,
        slots=size.slots,
        bf16=size.bf16,
        parameters=parameters(config),
        baseline_parameters=parameters(rival),
    )
    used = (p for name, p in theirs.model.named_parameters() if not name.startswith("encoder.tokens"))
    moved = theirs.nbytes + sum(p.numel() * p.element_size() for p in used)
    return {
        **row,
        "tokens_per_second": 1000 * batch / float(str(row["ours_ms"])),
        "baseline_tokens_per_second": 1000 * batch / float(str(row["baseline_ms"])),
        "state_bytes": ours.state.nbytes,
        "baseline_state_bytes": theirs.nbytes,
        "baseline_share_of_bandwidth": moved / (float(str(row["baseline_ms"])) / 1000) / bandwidth,
    }


class CachedTransformer:
    """A Transformer whose cache holds a context already; a step adds a token to its end and attends to all of it."""

    def __init__(self, model: Baseline, batch: int, length: int) -> None:
        attention = model.config.attention
        like = model.norm.weight
        size = like.shape[0] // attention.heads
        self.model, self.length = model, length
        shape = (model.config.layers, 2, batch, attention.heads, length, size)
        self.cache = torch.empty(shape, dtype=like.dtype, device=like.device)
        for layer in self.cache:
            layer.normal_()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens = torch.zeros(batch, dtype=torch.int64, device=like.device)
        self._out = torch.empty(0)
        self._run = torch.compile(self._advance, fullgraph=True) if like.is_cuda else self._advance

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self.cache.numel() * self.cache.element_size()

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Predictions [B, V] after one more token [B]."""
        if not tokens.is_cuda:
            return self._advance(tokens)
        self._tokens.copy_(tokens)
        if self._graph is None:
            self._graph, self._out = record(lambda: self._run(self._tokens), tokens.device)
        self._graph.replay()
        return self._out

    def forget(self) -> None:
        """Compile and record anew, for another kind of attention."""
        self._graph = None
        if self.cache.is_cuda:
            torch.compiler.reset()
            self._run = torch.compile(self._advance, fullgraph=True)

    def _advance(self, tokens: Tensor) -> Tensor:
        model, heads = self.model, self.model.config.attention.heads
        (field,) = model.config.inputs.tokens
        gap = torch.ones(len(tokens), 1, device=tokens.device)
        inputs = Batch(tokens={field.name: tokens.unsqueeze(1)}, channels=None, dt=gap, mask=None, start=None)
        x = model.encoder(inputs).squeeze(1)
        here = torch.full((len(tokens), 1), self.length - 1, device=tokens.device)
        for block, cache in zip(model.blocks, self.cache, strict=True):
            mixer: Attention = block.mixer  # type: ignore[assignment]
            parts = mixer.inward(block.norm_mixer(x)).view(len(tokens), 1, 3, heads, -1).unbind(2)  # type: ignore[operator]
            query, key = (mixer.turn(part, mixer.turn.angles(here)).transpose(1, 2) for part in parts[:2])
            cache[0, :, :, -1:].copy_(key)
            cache[1, :, :, -1:].copy_(parts[2].transpose(1, 2))
            found = nn.functional.scaled_dot_product_attention(query, cache[0], cache[1])
            x = x + mixer.outward(found.transpose(1, 2).flatten(1))
            x = x + block.feed(block.norm_feed(x))  # type: ignore[operator]
        out: Tensor = model.heads.maps["tokens_head"](model.norm(x))
        return out


def _made(config: object, size: Size, device: torch.device) -> Baseline:
    torch.manual_seed(0)
    model = build(config).to(device).eval()  # type: ignore[arg-type]
    assert isinstance(model, Baseline)
    return model.to(torch.bfloat16) if size.bf16 else model


@torch.no_grad()
def _decoder(config: CramConfig, size: Size, batch: int, length: int, device: torch.device) -> Decoder:
    """CRAM after a context of random tokens."""
    torch.manual_seed(0)
    model = Cram(config).to(device).eval()
    model = model.to(torch.bfloat16) if size.bf16 else model
    model.check_values = False
    state = None
    for begin in range(0, length, _CHUNK):
        tokens = torch.randint(size.vocabulary, (batch, min(_CHUNK, length - begin)), device=device)
        state = model(tokens, state=state).state
    return Decoder(model, state, compile=size.compile)
