"""How much of a model's attention can be told without attending: everything that `torchcram probe` finds out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcram.pretrained import measures, probes, sites
from torchcram.pretrained.function import Tester, best_first, copying, recovered
from torchcram.pretrained.gguf import Array
from torchcram.pretrained.load import Pretrained
from torchcram.pretrained.measures import SETS, Judged
from torchcram.pretrained.probes import ADAPTER, LINEAR, MEAN, ProbeConfig, Probes
from torchcram.pretrained.sites import Site
from torchcram.pretrained.text import Windows
from torchcram.resampling import resampled
from torchcram.results import Row
from torchcram.strict import StrictConfig, check_integer

HIGH, LOW = 0.8, 0.5
"""The paper's three groups of heads: above, between, below."""

PARTS = ("without bias", "with bias")
"""Of a layer's output."""

FEW = 10
"""Documents: fewer give no interval."""

_MEASURES = ("printed", "excess", "r2", "cosine")
_COPIES = 32  # windows of random tokens, all of them twice
_COPIED = 256  # tokens of such a window, at most

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RedundancyConfig(StrictConfig):
    """What is measured, and on how much text."""

    tested_tokens: int = 100_000
    """Tokens for losses with attention replaced, at most."""
    control_tokens: int = 200_000
    """Tokens that the probes of a model with random weights learn from, at most; 0: there is no such control."""
    draws: int = 200
    """Of documents, for intervals."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)

    def __post_init__(self) -> None:
        check_integer("tested_tokens", self.tested_tokens, 1)
        check_integer("control_tokens", self.control_tokens, 0)
        check_integer("draws", self.draws, 2)


def run(
    loaded: Pretrained,
    train: Windows,
    held: Windows,
    config: RedundancyConfig,
    *,
    device: torch.device | str = "cpu",
    say: Say = lambda text: None,
) -> Iterator[Row]:
    """Rows of results: of each layer, head and group of layers; of losses with attention replaced; and of copying."""
    found = sites.find(loaded.model)
    say(f"learning to predict {len(found)} layers from {train.tokens.numel():,} tokens")
    learned = probes.fit(loaded.model, found, train, config.probe, device)
    say(f"judging on {held.tokens.numel():,} tokens")
    batch = config.probe.batch
    judged = measures.judge(loaded.model, found, learned, held, batch=batch, device=device)
    yield from _rows(judged, found, learned, "pretrained", config.draws)
    if config.control_tokens:
        say("the same with random weights")
        yield from _control(loaded, train, held, config, device)
    tested = _first(held, config.tested_tokens)
    say(f"losses with attention replaced, on {tested.tokens.numel():,} tokens")
    names = [name for name in (MEAN, LINEAR, ADAPTER) if name in judged.names]
    tester = Tester(loaded.model, found, tested, batch=batch, device=device)
    yield from _losses(tester, learned, names, config.draws, say)
    say("copying")
    yield from _copies(loaded, found, learned, names, batch, device)
    if isinstance(loaded.model, sites.Own):
        yield {"what": "reads", **loaded.model.executed(tested, batch, device)}


def _control(
    loaded: Pretrained, train: Windows, held: Windows, config: RedundancyConfig, device: torch.device | str
) -> Iterator[Row]:
    torch.manual_seed(config.probe.seed)
    fresh = loaded.fresh().to(device).eval().requires_grad_(False)
    found = sites.find(fresh)
    part = ProbeConfig.from_dict({**config.probe.to_dict(), "rank": 0, "steps": 0})
    learned = probes.fit(fresh, found, _first(train, config.control_tokens), part, device)
    some = _first(held, config.control_tokens)
    judged = measures.judge(fresh, found, learned, some, batch=part.batch, device=device)
    yield from _rows(judged, found, learned, "random", config.draws)


def _first(windows: Windows, tokens: int) -> Windows:
    """A part of windows that has so many tokens, evenly from all of them so that every document is there."""
    count = max(1, tokens // windows.tokens.shape[1])
    if count >= len(windows):
        return windows
    which = torch.linspace(0, len(windows) - 1, count).round().long()
    return Windows(windows.tokens[which], windows.owner[which], windows.names)


def _rows(judged: Judged, found: Sequence[Site], learned: Probes, weights: str, draws: int) -> Iterator[Row]:
    """How near each predictor comes: each layer, thirds of the layers with intervals, and each head."""
    enough = len(np.unique(judged.owner)) >= FEW
    whole, drawn = judged.measures(), judged.drawn(draws) if enough else []
    heads, layers = found[0].heads, len(found)
    if any(site.heads != heads for site in found):
        raise ValueError("the layers differ in their number of heads, which is not known here")
    parts = PARTS if any(site.bias is not None for site in found) else PARTS[:1]

    def scores(at: tuple[Any, ...]) -> dict[str, float | None]:
        return {name: _mean(whole[name][at]) for name in _MEASURES}

    def between(at: tuple[Any, ...]) -> dict[str, float | None]:
        out: dict[str, float | None] = {}
        for name in _MEASURES:
            several = [mean for each in drawn if (mean := _mean(each[name][at])) is not None]
            low, high = np.quantile(several, (0.025, 0.975)).tolist() if several else (None, None)
            out |= {f"{name}_low": low, f"{name}_high": high}
        return out

    linear = judged.names.index(LINEAR)
    for place, positions in enumerate(SETS):
        common = {"weights": weights, "positions": positions}
        for (number, predictor), (part, told) in itertools.product(enumerate(judged.names), enumerate(parts)):
            which = {**common, "predictor": predictor, "part": told}
            for layer in range(layers):
                yield {"what": "layer", "layer": layer, **which, **scores((layer, number, heads + part, place))}
            for group, some in _groups(layers).items():
                at = (some, number, heads + part, place)
                yield {"what": "group", "group": group, **which, **scores(at), **between(at)}
        for measure in ("printed", "r2"):
            yield {"what": "heads", **common, "measure": measure, **_shares(whole[measure][:, linear, :heads, place])}
        for layer, head in itertools.product(range(layers), range(heads)):
            yield {"what": "head", **common, "layer": layer, "head": head, **scores((layer, linear, head, place))}
    for layer, penalty in enumerate(learned.penalties):
        yield {"what": "penalty", "weights": weights, "layer": layer, "penalty": penalty}


def _mean(values: Array) -> float | None:
    """Of those that are numbers: a head that always returns the same has no variance to be told."""
    known = np.atleast_1d(values)[np.isfinite(np.atleast_1d(values))]
    return float(known.mean()) if len(known) else None


def _shares(every: Array) -> dict[str, float]:
    """Of heads that return more than one thing, in the paper's three groups."""
    each = every[np.isfinite(every)]
    high, low = float((each > HIGH).mean()), float((each < LOW).mean())
    return {"high": high, "middle": 1 - high - low, "low": low}


def _groups(layers: int) -> dict[str, slice]:
    """Thirds, and all."""
    first, second = round(layers / 3), round(2 * layers / 3)
    return {
        "early": slice(0, max(1, first)),
        "middle": slice(first, max(first + 1, second)),
        "late": slice(min(second, layers - 1), layers),
        "overall": slice(0, layers),
    }


def _losses(tester: Tester, learned: Probes, names: Sequence[str], draws: int, say: Say) -> Iterator[Row]:
    intact = tester.loss()
    yield {"what": "loss", "loss": float(intact.mean()), "perplexity": float(intact.mean().exp())}
    alone = {}
    for name in names:
        say(f"one layer replaced: {name}")
        alone[name] = tester.one_by_one(learned.of(name))
    orders = {"first to last": list(range(len(tester.sites))), "best first": best_first(alone[LINEAR])}
    growing: dict[tuple[str, str], list[Tensor]] = {}
    for told, order in orders.items():
        for name in names:
            say(f"more and more layers replaced, {told}: {name}")
            growing[told, name] = tester.more_and_more(learned.of(name), order)

    def row(name: str, losses: Tensor, ablated: Tensor) -> dict[str, Any]:
        low, high = _interval(losses - intact, tester.windows.owner, draws)
        return {
            "predictor": name,
            "loss": float(losses.mean()),
            "cost": float((losses - intact).mean()),
            "cost_low": low,
            "cost_high": high,
            "recovered": recovered(float(intact.mean()), float(losses.mean()), float(ablated.mean())),
        }

    for name in names:
        for layer, losses in enumerate(alone[name]):
            yield {"what": "one layer", "layer": layer, **row(name, losses, alone[MEAN][layer])}
    for (told, name), several in growing.items():
        for count, losses in enumerate(several, start=1):
            yield {
                "what": "layers",
                "order": told,
                "count": count,
                "layer": orders[told][count - 1],
                **row(name, losses, growing[told, MEAN][count - 1]),
            }


def _interval(costs: Tensor, owner: Tensor, draws: int) -> tuple[float | None, float | None]:
    """95 % of the mean over windows, of documents drawn again and again; None if they are few."""
    if len(set(owner.tolist())) < FEW:
        return None, None
    values = costs.numpy()
    low, high = np.quantile([values[rows].mean() for rows in resampled(owner.numpy(), draws)], (0.025, 0.975))
    return float(low), float(high)


def _copies(
    loaded: Pretrained,
    found: Sequence[Site],
    learned: Probes,
    names: Sequence[str],
    batch: int,
    device: torch.device | str,
) -> Iterator[Row]:
    """The loss on random tokens when they come again."""
    vocabulary = int(loaded.model.get_input_embeddings().weight.shape[0])
    length = min(_COPIED, loaded.context or _COPIED)
    made = copying(vocabulary, loaded.tokenizer.first, count=_COPIES, length=length)
    tester = Tester(loaded.model, found, made, batch=batch, device=device)
    begin = made.tokens.shape[1] - (length - (loaded.tokenizer.first is not None)) // 2
    intact = float(tester.loss(begin=begin).mean())
    chance = float(np.log(vocabulary))
    yield {"what": "copying", "replaced": "nothing", "predictor": "", "loss": intact, "chance": chance}
    for name in names:
        predictors = learned.of(name)
        for layer, predictor in predictors.items():
            loss = float(tester.loss({layer: predictor}, begin).mean())
            yield {"what": "copying", "replaced": f"layer {layer}", "predictor": name, "loss": loss, "chance": chance}
        loss = float(tester.loss(predictors, begin).mean())
        yield {"what": "copying", "replaced": "all layers", "predictor": name, "loss": loss, "chance": chance}
