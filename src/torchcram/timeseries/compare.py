"""Models on the same footing: each learns from the same samples, is chosen by the same, and judged on the same."""

from __future__ import annotations

import inspect
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchcram.config import BASELINES
from torchcram.files import replacing
from torchcram.ledger import Ledger
from torchcram.results import ROUTED, Row
from torchcram.strict import reject
from torchcram.timeseries.batches import usual_gap
from torchcram.timeseries.estimators import CramClassifier, CramLabeller
from torchcram.timeseries.fitting import FitConfig, Fitting, predict
from torchcram.timeseries.metrics import CLASSIFYING, LABELLING, difference, interval, log_loss
from torchcram.timeseries.rivals import GruD, Logistic, Majority, Mtand, Trees
from torchcram.timeseries.scaling import Scaling
from torchcram.timeseries.series import UNKNOWN, Array, Series, Split
from torchcram.timeseries.settings import SETTINGS, SIGHT
from torchcram.timeseries.windows import overlapping

TABULAR = ("majority", "logistic", "trees")
_RIVALS: Mapping[str, Any] = {"gru-d": GruD, "mtand": Mtand}
RIVALS = tuple(_RIVALS)
MODELS = (*TABULAR, *RIVALS, *BASELINES, "cram")
"""All that can be compared, by name."""

FEW = 10
"""Groups: with fewer, single samples are resampled."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What a model says of the test samples of a split."""

    row: dict[str, Any]
    """Which model and split, how good, and what it took."""
    labels: Array
    groups: Array
    probabilities: Array


def judge(
    model: str,
    parts: Split,
    *,
    members: int = 1,
    settings: Mapping[str, Any] | None = None,
    tries: Mapping[str, Sequence[Any]] | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Iterator[Said]:
    """Fit a model and judge it; CRAM also with no time stamp reading, and with all.

    members: models with seeds one after another whose probabilities are averaged, for all that are drawn at random.
    settings: of the estimator, of GRU-D or of mTAND, and of `FitConfig`, by name.
    tries: of the same, values to choose from by validation.
    """
    begun = time.perf_counter()
    given, options = dict(settings or {}), dict(tries or {})
    check(model, {**given, **options})
    if model in TABULAR:
        made: Any = {"majority": Majority, "logistic": Logistic, "trees": Trees}[model]
        one: Any = (made() if model == "majority" else made(seed=seed)).fit(parts.train, parts.val)
        fitted = _Fitted([one], getattr(one, "chosen", {}), [])
    else:
        fitted = _fit(lambda own, number: _one(model, parts, own, device, number), parts, given, options, members, seed)
    seconds = time.perf_counter() - begun
    for routing in routings(model):
        how = {"reads": routing} if model == "cram" else {}
        val, _ = fitted.predict_proba(parts.val, **how)
        test, ledger = fitted.predict_proba(parts.test, **how)
        facts: dict[str, Any] = {
            "model": model,
            "routing": routing,
            "seed": seed,
            "members": len(fitted.members),
            "settings": json.dumps(given, sort_keys=True),
            "tries": json.dumps(options, sort_keys=True),
            "chosen": json.dumps(fitted.chosen),
            "tried": json.dumps(fitted.tried),
            "groups": len(np.unique(parts.test.groups)),
            **{f"val_{name}": value for name, value in scores(parts.val, val, draws=0).items()},
            **scores(parts.test, test),
            "parameters": _parameters(fitted.members[0]),
            "seconds": seconds,
            **(ledger.to_dict() if ledger is not None else {}),
        }
        known = parts.test.labels != UNKNOWN
        yield Said(
            row=facts,
            labels=parts.test.labels[known],
            groups=_groups(parts.test)[known],
            probabilities=test[known],
        )


@dataclass(frozen=True)
class _Fitted:
    """Models whose probabilities are averaged."""

    members: Sequence[Any]
    chosen: Mapping[str, Any]
    """What validation chose."""
    tried: Sequence[Mapping[str, Any]]
    """What it chose from, each with its log loss."""

    def predict_proba(self, series: Series, **how: Any) -> tuple[Array, Ledger | None]:
        """What they say, and what they executed, if they count it."""
        said, ledger = [], None
        for member in self.members:
            said.append(member.predict_proba(series, **how))
            executed: Ledger | None = getattr(member, "ledger", None)  # of the last prediction
            if executed is not None:
                ledger = executed if ledger is None else ledger + executed
        return np.asarray(np.mean(said, axis=0)), ledger


def _fit(
    make: Callable[[Mapping[str, Any], int], Any],
    parts: Split,
    settings: Mapping[str, Any],
    tries: Mapping[str, Sequence[Any]],
    members: int,
    seed: int,
) -> _Fitted:
    """One with each combination of what is tried; then as many more like the best as are wanted."""
    known = parts.val.labels != UNKNOWN
    best, chosen, first, tried = np.inf, {}, None, []
    for values in itertools.product(*tries.values()):
        option = dict(zip(tries, values, strict=True))
        found = make({**settings, **option}, seed)
        loss = np.nan
        if tries:
            loss = log_loss(parts.val.labels[known], found.predict_proba(parts.val)[known])
            tried.append({**option, "val_loss": loss})
        if first is None or loss < best:
            best, chosen, first = loss, option, found
    others = [make({**settings, **chosen}, seed + number) for number in range(1, members)]
    return _Fitted([first, *others], chosen, tried)


def _one(model: str, parts: Split, settings: Mapping[str, Any], device: str, seed: int) -> Any:
    """One network, fitted."""
    if model in RIVALS:
        return _Rival(model, seed=seed, settings=settings, device=device).fit(parts.train, parts.val)
    kind = CramLabeller if parts.train.per_step else CramClassifier
    return kind(model=model, seed=seed, device=device, progress=False, **settings).fit(parts.train, parts.val)


def own(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of settings for all, those that are a model's business.

    Tables have none; GRU-D and mTAND see every time stamp as their authors say, whatever sequence models are told.
    """
    if model in TABULAR:
        return {}
    return {name: value for name, value in settings.items() if model not in RIVALS or name not in SIGHT}


def check(model: str, settings: Mapping[str, Any]) -> None:
    """Refuse a model, or a setting of it, that does not exist."""
    if model not in MODELS:
        reject("model", model, ", ".join(MODELS))
    allowed: Iterable[str] = () if model in TABULAR else SETTINGS
    if model in RIVALS:
        own = inspect.signature(_RIVALS[model]).parameters
        allowed = {*FitConfig.__dataclass_fields__, *own} - {"channels", "statics", "classes", "per_step", "span"}
    allowed = set(allowed) - {"seed", "members", "model", "progress"}
    if unknown := sorted(set(settings) - allowed):
        raise ValueError(
            f"{', '.join(unknown)} cannot be set for {model}; allowed: {', '.join(sorted(allowed)) or 'none'}"
        )


def routings(model: str) -> tuple[str, ...]:
    """The ways in which a model is judged."""
    return (ROUTED, "off", "dense") if model == "cram" else (ROUTED,)


def scores(series: Series, probabilities: Array, draws: int = 1000) -> dict[str, float]:
    """Measures of predictions, with 95 % intervals over groups if any are drawn."""
    known = series.labels != UNKNOWN
    labels, said, groups = series.labels[known], probabilities[known], _groups(series)[known]
    found: dict[str, float] = {"loss": log_loss(labels, said)}
    for name, measure in (LABELLING if series.per_step else CLASSIFYING).items():
        found[name] = measure(labels, said)
        if draws:
            between = interval(measure, labels, said, groups, draws=draws)
            found |= {f"{name}_low": between.low, f"{name}_high": between.high}
    return found


def chance(labels: Array, classes: int) -> dict[str, float]:
    """What the measures give for someone who knows the shares of the classes and nothing else."""
    shares = np.bincount(labels, minlength=classes) / len(labels)
    shares = shares[shares > 0] if classes > 2 else shares
    most, count = float(shares.max()), int((shares > 0).sum())
    # Always the same class; classes by their shares; all classes alike: whichever does best.
    f1 = max(2 * most / (1 + most) / count, 1 / count, float(np.mean(2 * shares / count / (shares + 1 / count))))
    return {
        "auroc": 0.5,
        "auprc": float(shares[1]) if classes == 2 else float(shares.mean()),
        "balanced_accuracy": 1 / count,
        "brier": float(shares[1] * shares[0]) if classes == 2 else float(1 - (shares**2).sum()),
        "accuracy": most,
        "macro_f1": f1,
    }


def save(said: Said, folder: Path, name: str) -> None:
    """Keep what a model said: its row, and its predictions beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, labels=said.labels, groups=said.groups, probabilities=said.probabilities)
    with replacing(folder / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(said.row) + "\n", encoding="utf-8")


def read(folder: Path) -> list[Said]:
    """All that was kept in a folder, in the order of `MODELS` and of `routings`, then of splits."""
    found = []
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(row, dict) or "model" not in row:
            continue
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as data:
            found.append(Said(row=row, **{name: data[name] for name in ("labels", "groups", "probabilities")}))
    return sorted(found, key=_place)


def _place(said: Said) -> tuple[int, int, int]:
    model = said.row["model"]
    return MODELS.index(model), routings(model).index(said.row["routing"]), said.row["split"]


def differences(every: Sequence[Said], measure: str, draws: int = 1000) -> Iterator[Row]:
    """What CRAM is ahead of each other model by, on each split, with a paired 95 % interval; and over the splits."""
    function = {**CLASSIFYING, **LABELLING}[measure]
    by_key = {(said.row["split"], said.row["model"], said.row["routing"]): said for said in every}
    ours = {split: said for (split, model, routing), said in by_key.items() if (model, routing) == ("cram", ROUTED)}
    others = dict.fromkeys((model, routing) for _, model, routing in by_key if (model, routing) != ("cram", ROUTED))
    for model, routing in others:
        gaps, clear = [], 0
        for split, mine in ours.items():
            theirs = by_key.get((split, model, routing))
            if theirs is None:
                continue
            if not (np.array_equal(mine.labels, theirs.labels) and np.array_equal(mine.groups, theirs.groups)):
                raise ValueError(f"{model} was judged on other samples of split {split} than cram")
            between = difference(
                function, mine.labels, mine.probabilities, theirs.probabilities, mine.groups, draws=draws
            )
            gap = function(mine.labels, mine.probabilities) - function(mine.labels, theirs.probabilities)
            gaps.append(gap)
            clear += between.without(0)
            yield {
                "what": "difference",
                "measure": measure,
                "model": model,
                "routing": routing,
                "split": split,
                "ahead": gap,
                "low": between.low,
                "high": between.high,
            }
        if len(gaps) > 1:
            yield {
                "what": "difference, all splits",
                "measure": measure,
                "model": model,
                "routing": routing,
                "splits": len(gaps),
                "ahead": float(np.mean(gaps)),
                "sd": float(np.std(gaps, ddof=1)),
                "clear": clear,
            }


class _Rival:
    """GRU-D or mTAND, fitted as CRAM is."""

    def __init__(self, name: str, *, seed: int, settings: Mapping[str, Any], device: str) -> None:
        fit = {key: value for key, value in settings.items() if key in FitConfig.__dataclass_fields__}
        self.own = {key: value for key, value in settings.items() if key not in fit}
        self.config = FitConfig.from_dict({**fit, "seed": seed})
        self.name, self.device = name, device

    def fit(self, train: Series, val: Series) -> _Rival:
        train, val = (part.by_order() if self.config.times == "order" else part for part in (train, val))
        self.scaling, self.unit = Scaling.fit(train), usual_gap(train)
        context = self.config.context if train.per_step else None
        seen = train if context is None else overlapping(train, context)[0]
        spans = (seen.times[seen.offsets[1:] - 1] - seen.times[seen.offsets[:-1]]) / self.unit
        torch.manual_seed(self.config.seed)
        self.network: nn.Module = _RIVALS[self.name](
            channels=len(train.channels),
            statics=len(train.static_names),
            classes=len(train.classes),
            per_step=train.per_step,
            span=float(max(1e-6, spans.max())),
            **self.own,
        )
        learned, chosen = (self.scaling.apply(part) for part in (train, val))
        for _ in Fitting(self.network, learned, chosen, self.config, unit=self.unit, device=self.device).run():
            pass
        return self

    def predict_proba(self, series: Series) -> Array:
        c, scaled = self.config, self.scaling.apply(series)
        scaled = scaled.by_order() if c.times == "order" else scaled
        return predict(self.network, scaled, unit=self.unit, device=self.device, context=c.context, bf16=c.bf16)[0]


def _groups(series: Series) -> Array:
    """[labels]: of each label, what is resampled: groups, or samples where groups are too few to."""
    owner = series.groups if len(np.unique(series.groups)) >= FEW else series.ids
    return np.repeat(owner, series.lengths) if series.per_step else owner


def _parameters(fitted: Any) -> int | None:
    estimated = getattr(fitted, "_fitted", None)
    network = fitted.network if isinstance(fitted, _Rival) else estimated and estimated.networks[0]
    return sum(p.numel() for p in network.parameters()) if network is not None else None
