"""One token after another: CRAM in place, against a Transformer with a cache of all keys and values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchcram.bench.timing import BACKENDS, best_of, compare, copy_bandwidth, in_a_row, shared_out, waiting
from torchcram.bench.whole import Size
from torchcram.config import CramConfig
from torchcram.memory import EPISODIC, CramState, Router
from torchcram.models import Baseline, Cram, Decoder, baseline, build, parameters
from torchcram.models.baselines.attention import Attention
from torchcram.models.inputs import Batch
from torchcram.models.recording import record
from torchcram.results import Row

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

_CHUNK = 2048  # positions of a context fed at once
_TRIED = 4096  # tokens by which it is found out how many read
_ROUND = 64  # tokens of each sequence, one after the other and then again
_STEPS = 16  # timed together
# How the Transformer is compiled: a product of one row is a sum then, together with what comes before and after it.
_TUNED: dict[str, str | int | bool | Callable[..., object]] = {"coordinate_descent_tuning": True}


def run(
    sizes: Sequence[Size], lengths: Sequence[int], batches: Sequence[int], device: str, repeats: int = 50
) -> Iterator[Row]:
    """A step of both after contexts of each length, for batches of each size; the sizes differ in CRAM's buffers.

    Tokens a second are asked for, not how long one alone takes: so steps follow each other without waiting, and what
    is timed is a round of them, of which a step is its part.
    """
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
    tokens = itertools.cycle(torch.randint(size.vocabulary, (_ROUND, batch), device=place).unbind())
    attention = theirs.choose(next(tokens))
    row = compare(
        "decode",
        in_a_row(lambda: ours.step(next(tokens)), place, _STEPS),
        in_a_row(lambda: theirs.step(next(tokens)), place, _STEPS),
        against=f"transformer, {attention}",
        length=length,
        repeats=repeats,
        batch=batch,
        slots=size.slots,
        bf16=size.bf16,
        parameters=parameters(config),
        baseline_parameters=parameters(rival),
    )
    row = shared_out(row, _STEPS, _STEPS)
    used = (p for name, p in theirs.model.named_parameters() if not name.startswith("encoder.tokens"))
    moved = theirs.nbytes + sum(p.numel() * p.element_size() for p in used)
    share = moved / (float(str(row["baseline_ms"])) / 1000) / bandwidth
    return {
        **row,
        "reads": ours.ledger().layer_reads,
        "tokens_per_second": 1000 * batch / float(str(row["ours_ms"])),
        "baseline_tokens_per_second": 1000 * batch / float(str(row["baseline_ms"])),
        "state_bytes": ours.state.nbytes,
        "baseline_state_bytes": theirs.nbytes,
        "baseline_share_of_bandwidth": share,
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
        self._attend: Attend = nn.functional.scaled_dot_product_attention
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens = torch.zeros(batch, dtype=torch.int64, device=like.device)
        self._out = torch.empty(0)
        # Attention is left alone. Of the cache, what is compiled sees only the place for one more key and value: it
        # would copy all of it to change it.
        self._first, self._between, self._last = self._begin, self._go_on, self._end
        if like.is_cuda:
            torch._dynamo.config.recompile_limit = max(2 * model.config.layers, torch._dynamo.config.recompile_limit)
            self._first = torch.compile(self._begin, fullgraph=True, dynamic=False, options=_TUNED)
            self._between = torch.compile(self._go_on, fullgraph=True, dynamic=False, options=_TUNED)
            self._last = torch.compile(self._end, fullgraph=True, dynamic=False, options=_TUNED)

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
            self._graph, self._out = record(lambda: self._advance(self._tokens), tokens.device)
        self._graph.replay()
        return self._out

    @torch.no_grad()
    def choose(self, tokens: Tensor) -> str:
        """From now on use whichever attention makes a step fastest, and say which that is."""
        if not tokens.is_cuda:
            return "default attention"
        from torchcram.bench import split_keys

        kinds: dict[str, Attend] = {name: partial(_by, kernel) for name, kernel in BACKENDS.items()}
        kinds["keys in parts"] = split_keys.attend
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._tokens.copy_(tokens)
        for kind, attend in kinds.items():
            self._attend = attend
            graphs[kind], self._out = record(lambda: self._advance(self._tokens), tokens.device)
        best = best_of({kind: waiting(graph.replay, tokens.device) for kind, graph in graphs.items()})
        self._attend, self._graph = kinds[best], None  # recorded anew: each recording has a result of its own
        return best

    def _advance(self, tokens: Tensor) -> Tensor:
        places = self.cache[:, :, :, :, -1].unbind()
        x, query = self._first(tokens, places[0])
        for number, (key, value) in enumerate(self.cache):
            found = self._attend(query, key, value).transpose(1, 2).flatten(1)
            if number < len(self.cache) - 1:
                x, query = self._between(x, found, number, places[number + 1])
        return self._last(x, found)

    def _begin(self, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        (field,) = self.model.config.inputs.tokens
        gap = torch.ones(len(tokens), 1, device=tokens.device)
        inputs = Batch(tokens={field.name: tokens.unsqueeze(1)}, channels=None, dt=gap, mask=None, start=None)
        x = self.model.encoder(inputs).squeeze(1)
        return x, self._look(x, 0, place)

    def _go_on(self, x: Tensor, found: Tensor, number: int, place: Tensor) -> tuple[Tensor, Tensor]:
        """From what attention of a layer found [B, D] to what the next one asks."""
        x = self._fed(x, found, number)
        return x, self._look(x, number + 1, place)

    def _end(self, x: Tensor, found: Tensor) -> Tensor:
        model = self.model
        out: Tensor = model.heads.maps["tokens_head"](model.norm(self._fed(x, found, len(self.cache) - 1)))
        return out

    def _look(self, x: Tensor, number: int, place: Tensor) -> Tensor:
        """The query [B, H, 1, d] of a layer; key and value go to their place in its cache [2, B, H, d]."""
        block = self.model.blocks[number]
        mixer: Attention = block.mixer  # type: ignore[assignment]
        here = torch.full((len(x), 1), self.length - 1, device=x.device)
        turned = mixer.turn.angles(here)
        parts = mixer.inward(block.norm_mixer(x)).view(len(x), 1, 3, mixer.config.heads, -1)  # type: ignore[operator]
        query, key, value = parts.unbind(2)
        place.copy_(torch.stack([mixer.turn(key, turned).squeeze(1), value.squeeze(1)]))
        asked: Tensor = mixer.turn(query, turned).transpose(1, 2)
        return asked

    def _fed(self, x: Tensor, found: Tensor, number: int) -> Tensor:
        block = self.model.blocks[number]
        x = x + block.mixer.outward(found)  # type: ignore[union-attr, operator]
        out: Tensor = x + block.feed(block.norm_feed(x))  # type: ignore[operator]
        return out


def _by(kernel: SDPBackend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel([kernel]):
        return nn.functional.scaled_dot_product_attention(query, key, value)


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
    _impose(model, size, None, batch)
    state = None
    for begin in range(0, length, _CHUNK):
        tokens = torch.randint(size.vocabulary, (batch, min(_CHUNK, length - begin)), device=device)
        state = model(tokens, state=state).state
    _impose(model, size, state, batch)
    return Decoder(model, state, compile=size.compile)


@torch.no_grad()
def _impose(model: Cram, size: Size, state: CramState | None, batch: int) -> None:
    """Have as many random tokens read in every layer as are wanted: a fresh router has nearly all of them read.

    It is tried out on tokens that come after `state`: working memory, which the router sees, is another then.
    """
    tokens = torch.randint(size.vocabulary, (batch, -(-_TRIED // batch)), device=model.norm.weight.device)
    seen: list[Tensor] = []
    for block in model.blocks:
        router = cast(Router, block.router)
        watched = router.register_forward_hook(lambda _, __, logits: seen.append(logits.float()))
        model(tokens, state=state)
        watched.remove()
        none, read, recall = seen.pop().unbind(-1)
        ahead = (read - torch.maximum(none, recall)).flatten()
        router.out.bias[EPISODIC] -= torch.quantile(ahead, 1 - size.reads).to(model.norm.weight.dtype)
