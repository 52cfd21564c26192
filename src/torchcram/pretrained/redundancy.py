"""How much of a model's attention can be told without attending: everything that `torchcram probe` finds out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcram.pretrained import function, measures, probes, sites
from torchcram.pretrained.function import Copies, Tester
from torchcram.pretrained.gguf import Array
from torchcram.pretrained.load import Pretrained
from torchcram.pretrained.measures import SETS, Judged
from torchcram.pretrained.probes import ADAPTER, LINEAR, MEAN, ProbeConfig, Probes
from torchcram.pretrained.sites import Predictor, Site
from torchcram.pretrained.text import Windows
from torchcram.results import Row
from torchcram.strict import StrictConfig, check_integer

HIGH, LOW = 0.8, 0.5
"""The paper's three groups of heads: above, between, below."""

PARTS = ("without bias", "with bias")
"""Of a layer's output."""

_MEASURES = ("printed", "excess", "r2", "cosine")
_COPIES = 32  # sequences of random tokens, all of them twice; fewer if fewer tokens are tested
_COPIED = 256  # tokens of such a sequence, at most

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
    judged: Mapping[str, Windows],
    config: RedundancyConfig,
    *,
    device: torch.device | str = "cpu",
    say: Say = lambda text: None,
) -> Iterator[Row]:
    """Rows of results for each text that is judged on, by name; probes learn once for all of them."""
    found = sites.find(loaded.model)
    say(f"learning to predict {len(found)} layers from {train.tokens.numel():,} tokens")
    learned = probes.fit(loaded.model, found, train, config.probe, device)
    control = None
    if config.control_tokens:
        say("the same with random weights")
        control = _control(loaded, train, config, device)
    for text, held in judged.items():
        say(f"judging on {text}")
        rows = _judged(loaded, found, learned, control, held, config, device, say)
        yield from ({**row, "model": loaded.name, "text": text} for row in rows)


def _judged(
    loaded: Pretrained,
    found: Sequence[Site],
    learned: Probes,
    control: tuple[Any, Sequence[Site], Probes] | None,
    held: Windows,
    config: RedundancyConfig,
    device: torch.device | str,
    say: Say,
) -> Iterator[Row]:
    """Of each layer, head and group of layers; of losses with attention replaced; and of copying."""
    batch = config.probe.batch
    judged = measures.judge(loaded.model, found, learned, held, batch=batch, device=device)
    learned = learned.about([each[0] for each in judged.centres])
    yield from _rows(judged, found, learned, "pretrained", config.draws)
    if control is not None:
        fresh, its, known = control
        some = held.some(config.control_tokens, config.probe.seed)
        random = measures.judge(fresh, its, known, some, batch=batch, device=device)
        yield from _rows(random, its, known, "random", config.draws)
    tested = held.some(config.tested_tokens, config.probe.seed)
    say(f"losses with attention replaced, on {tested.tokens.numel():,} tokens")
    names = [name for name in (MEAN, LINEAR, ADAPTER) if name in judged.names]
    tester = Tester(loaded.model, found, tested, batch=batch, device=device)
    yield from _losses(tester, learned, names, config.draws, say)
    if not sites.recurrent(loaded.model, found):  # what carries a state may copy by it
        say("copying")
        length = min(_COPIED, loaded.context or _COPIED)
        count = min(_COPIES, max(1, config.tested_tokens // length))
        copies = function.copying(held.tokens, loaded.tokenizer.first, count=count, length=length)
        tester = Tester(loaded.model, found, copies.windows, batch=batch, device=device)
        yield from _copies(tester, copies, learned, names, config.draws)
    if isinstance(loaded.model, sites.Own):
        yield {"what": "reads", **loaded.model.executed(tested, batch, device)}


def _control(
    loaded: Pretrained, train: Windows, config: RedundancyConfig, device: torch.device | str
) -> tuple[Any, Sequence[Site], Probes]:
    """The model with random weights, and what probes learn of it."""
    torch.manual_seed(config.probe.seed)
    fresh = loaded.fresh()
    found = sites.find(fresh)
    part = ProbeConfig.from_dict({**config.probe.to_dict(), "rank": 0, "steps": 0})
    return fresh, found, probes.fit(fresh, found, train.some(config.control_tokens, part.seed), part, device)


def _rows(judged: Judged, found: Sequence[Site], learned: Probes, weights: str, draws: int) -> Iterator[Row]:
    """How near each predictor comes: each layer, thirds of the layers with intervals, and each head."""
    drawn = measures.draws(judged.windows, draws)
    whole, several = judged.measures(), {} if drawn is None else judged.measures(drawn)
    heads, layers = found[0].heads, len(found)
    if any(site.heads != heads for site in found):
        raise ValueError("the layers differ in their number of heads, which is not known here")
    parts = PARTS if any(site.bias is not None for site in found) else PARTS[:1]

    def scores(at: tuple[Any, ...]) -> dict[str, float | None]:
        return {name: _mean(whole[name][at]) for name in _MEASURES}

    def between(at: tuple[Any, ...]) -> dict[str, float | None]:
        out: dict[str, float | None] = {}
        for name in _MEASURES:
            low, high = None, None
            if several:
                known = np.ma.masked_invalid(several[name][:, *at])
                low, high = measures.between(known.mean(1).filled(np.nan))
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
        for layer, head in itertools.product(range(layers), range(heads)) if weights == "pretrained" else ():
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
    """Losses with attention replaced: in each layer alone, which are averaged over thirds, and in more and more layers.

    Those that are replaced best first are chosen on some documents, and their losses measured on others.
    """
    layers = list(range(len(tester.sites)))
    intact = tester.loss()
    yield {"what": "loss", "loss": float(intact.mean()), "perplexity": float(intact.mean().exp())}
    alone, drawn = {}, measures.draws(tester.windows, draws)
    for name in names:
        say(f"one layer replaced: {name}")
        alone[name] = tester.one_by_one(learned.of(name))
        for layer, losses in enumerate(alone[name]):
            worth = _worth(losses, intact, alone[MEAN][layer], drawn)
            yield {"what": "one layer", "layer": layer, "predictor": name, **worth}
        for group, some in _groups(len(layers)).items():
            mine, without = (torch.stack(alone[each][some]).mean(0) for each in (name, MEAN))
            yield {"what": "one of a group", "group": group, "predictor": name, **_worth(mine, intact, without, drawn)}
    orders = [("first to last", layers, tester, intact)]
    chosen = function.halves(tester.windows.owner)
    if not chosen.all():
        order = function.best_first([losses[chosen] for losses in alone[LINEAR]])
        orders.append(("best first", order, tester.on(~chosen), intact[~chosen]))
        for place, layer in enumerate(order, start=1):
            yield {"what": "order", "place": place, "layer": layer}
    counts = function.counts(len(layers))
    for told, order, there, base in orders:
        ablated, drawn = None, measures.draws(there.windows, draws)
        for name in names:
            say(f"more and more layers replaced, {told}: {name}")
            several = there.more_and_more(learned.of(name), order, counts)
            ablated = ablated or several
            for count, losses, without in zip(counts, several, ablated, strict=True):
                worth = _worth(losses, base, without, drawn)
                yield {"what": "layers", "order": told, "count": count, "predictor": name, **worth}


def _worth(losses: Tensor, intact: Tensor, ablated: Tensor, drawn: Array | None) -> dict[str, float | None]:
    """What a replacement costs, and the share that it saves of what the mean in its place does.

    No share is told unless the mean clearly costs something.
    """
    cost, lost = ((some - intact).numpy() for some in (losses, ablated))
    found = {
        "intact": float(intact.mean()),
        "loss": float(losses.mean()),
        "cost": float(cost.mean()),
        **dict.fromkeys(("cost_low", "cost_high", "recovered", "recovered_low", "recovered_high")),
    }
    if drawn is not None:
        costs, losts = (drawn @ some / drawn.sum(1) for some in (cost, lost))
        found["cost_low"], found["cost_high"] = measures.between(costs)
        if (measures.between(losts)[0] or 0) > 0:
            found["recovered"] = float(1 - cost.mean() / lost.mean())
            found["recovered_low"], found["recovered_high"] = measures.between(1 - costs / losts)
    return found


def _copies(tester: Tester, copies: Copies, learned: Probes, names: Sequence[str], draws: int) -> Iterator[Row]:
    """The loss on random tokens when they come again; intervals are over sequences."""
    drawn = measures.draws(copies.windows, draws)

    def row(replaced: str, name: str, predictors: Mapping[int, Predictor]) -> Row:
        losses = tester.loss(predictors, copies.begin).numpy()
        low, high = (None, None) if drawn is None else measures.between(drawn @ losses / drawn.sum(1))
        said = {"loss": float(losses.mean()), "loss_low": low, "loss_high": high, "chance": copies.chance}
        return {"what": "copying", "replaced": replaced, "predictor": name, **said}

    yield row("nothing", "", {})
    for name in names:
        predictors = learned.of(name)
        yield from (row(f"layer {layer}", name, {layer: predictors[layer]}) for layer in predictors)
        yield row("all layers", name, predictors)
