"""`fit` and `predict` for people who have irregular series: CRAM behind the interface of PyPOTS and scikit-learn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from torchcram.files import replacing
from torchcram.ledger import Ledger
from torchcram.memory import EPISODIC, SEMANTIC, BlockState, RoutingPolicy
from torchcram.models import Cram
from torchcram.strict import StrictConfig, check_flag, check_integer, reject
from torchcram.timeseries.arrays import as_series
from torchcram.timeseries.batches import pad, usual_gap
from torchcram.timeseries.fitting import Epoch, FitConfig, Fitting, predict
from torchcram.timeseries.network import Layout, Network, NetworkConfig
from torchcram.timeseries.scaling import Scaling
from torchcram.timeseries.series import UNKNOWN, Array, Series

VERSION = 1
_CONFIG, _SCALING = "estimator.json", "scaling.safetensors"
_HELD_OUT = 0.15  # share of the groups to choose by, where a user gives none


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig(StrictConfig):
    """What an estimator is made with."""

    model: str = "cram"
    """`cram`, or a baseline (`torchcram.config.BASELINES`) with as many parameters."""
    preset: str = "tiny"
    """Size of the model."""
    members: int = 1
    """Models that are fitted, with one seed after another, and whose probabilities are averaged."""
    network: dict[str, Any] = field(default_factory=dict)
    """Settings of `NetworkConfig`: `layout`, `features`, `answer`, `hide`."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the model by dotted name, e.g. `{"episodic.slots": 64}`."""
    fit: FitConfig = field(default_factory=FitConfig)
    progress: bool = True
    """Show a bar."""

    def __post_init__(self) -> None:
        check_integer("members", self.members, 1)
        check_flag("progress", self.progress)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a model did at one token of a sample: a time stamp, or with `layout="events"` a single measurement."""

    time: float
    measured: dict[str, float]
    """Channels and their values, as they were given."""
    actions: list[str]
    """Of each layer: `read`, `recalled` or `ignored` (neither)."""
    looked_at: float
    """How much of the reads of later tokens went here, over all layers, the mean over heads: 1 is a whole read."""


class _Estimator:
    """What classifiers and labellers have in common."""

    per_step: ClassVar[bool]
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *, device: str | None = None, **settings: Any) -> None:
        """settings: of `EstimatorConfig`, `NetworkConfig` (layout, features, …) and `FitConfig`, all by name.

        device: `cpu` or `cuda`; default: the GPU if there is one.
        """
        self.config = _config({**self.defaults, **settings})
        chosen = device if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = torch.device(chosen)
        self.history: list[list[Epoch]] = []
        """What came of each epoch, for each member."""
        self.ledger: Ledger | None = None
        """What the last prediction executed, all members together."""
        self._fitted: _Fitted | None = None

    @property
    def classes(self) -> list[Any]:
        """The labels that are known, in the order of probabilities."""
        return list(self._ready().classes)

    def fit(self, train: Any, val: Any = None, y: Any = None) -> Self:
        """Learn from `train`: a dict, an `.h5` file or a `Series`, with `val` like it; or from arrays, `fit(X, y)`.

        Without `val`, a seventh of the samples is kept apart to choose by.
        """
        if val is not None and y is None and not isinstance(val, Mapping | str | os.PathLike | Series):
            val, y = None, val  # fit(X, y)
        names = _names(train, y)
        series = as_series(train, y, classes=names, per_step=self.per_step)
        self._check(series)
        if val is not None:
            other = as_series(val, classes=names, per_step=self.per_step)
        else:
            series, other = _parted(series, self.config.fit.seed)
        self._check(other, like=series)
        if not (other.labels != UNKNOWN).any():
            raise ValueError("the validation samples have no labels")
        scaling, unit = Scaling.fit(series), usual_gap(series)
        shape = {"channels": len(series.channels), "statics": len(series.static_names), "classes": len(series.classes)}
        config = NetworkConfig.from_dict({**shape, "per_step": self.per_step, **self.config.network}).with_model(
            self.config.model, self.config.preset, **self.config.changes
        )
        networks, self.history = [], []
        with _bar(self.config) as advance:
            for member in range(self.config.members):
                fit = self.config.fit.override({"seed": self.config.fit.seed + member})
                torch.manual_seed(fit.seed)
                network = Network(config)
                fitting = Fitting(
                    network, scaling.apply(series), scaling.apply(other), fit, unit=unit, device=self.device
                )
                self.history.append([])
                for epoch in fitting.run():
                    self.history[-1].append(epoch)
                    advance(member, epoch, fitting.epochs)
                networks.append(network.eval())
        self._fitted = _Fitted(
            networks=networks,
            scaling=scaling,
            unit=unit,
            classes=names if names is not None else list(series.classes),
            channels=list(series.channels),
        )
        return self

    def predict_proba(self, data: Any, *, reads: str = "routed") -> Array:
        """Probabilities of the classes, [samples, K]; [time stamps of all samples, K] for labels a time stamp.

        reads: `routed`, as the model decides; `dense`, all time stamps read; `off`, none does.
        """
        fitted = self._ready()
        series = self._series(data)
        scaled = fitted.scaling.apply(series)
        policy = None if reads == "routed" else RoutingPolicy(reads=reads)  # type: ignore[arg-type]
        total: Array | None = None
        self.ledger = None
        for network in fitted.networks:
            if policy is not None and not isinstance(network.model, Cram):
                reject("reads", reads, "'routed' for a model that has no other way")
            found, ledger = predict(
                network, scaled, unit=fitted.unit, device=self.device, policy=policy, bf16=self.config.fit.bf16
            )
            total = found if total is None else total + found
            if ledger is not None:
                self.ledger = ledger if self.ledger is None else self.ledger + ledger
        assert total is not None
        return total / len(fitted.networks)

    def predict(self, data: Any) -> Array:
        """The most likely labels, as they were given to `fit`."""
        labels: Array = np.asarray(self.classes)[self.predict_proba(data).argmax(1)]
        return labels

    def explain(self, sample: Any) -> list[Explained]:
        """What the first model does at each token of a sample: which read, which are recalled, which ignored."""
        fitted = self._ready()
        series = self._series(sample)
        if len(series) != 1:
            raise ValueError(f"explain is for one sample; there are {len(series)}")
        batch = pad(fitted.scaling.apply(series), np.arange(1), unit=fitted.unit, device=self.device)
        with torch.no_grad():
            out = fitted.networks[0].told(batch, keep_state=True)
        times, measured = _tokens(series, fitted.networks[0].config.layout, fitted.channels)
        looked_at = np.zeros(len(times))
        for layer in out.state.layers if out.state is not None else ():
            if isinstance(layer, BlockState) and layer.episodic is not None:
                there = layer.episodic.position[0] >= 0
                at = layer.episodic.position[0, there].cpu().numpy()
                np.add.at(looked_at, at, layer.episodic.mass[0, there].double().cpu().numpy())
        words = {EPISODIC: "read", SEMANTIC: "recalled"}
        return [
            Explained(
                time=float(times[token]),
                measured=measured[token],
                actions=[words.get(int(action), "ignored") for action in out.routing[0, token]],
                looked_at=float(looked_at[token]),
            )
            for token in range(len(times))
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder."""
        fitted, folder = self._ready(), Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for number, network in enumerate(fitted.networks):
            tensors = {name: value.detach().contiguous().cpu() for name, value in network.state_dict().items()}
            with replacing(folder / f"member-{number}.safetensors") as temporary:
                save_file(tensors, temporary)
        with replacing(folder / _SCALING) as temporary:
            save_arrays({name: np.ascontiguousarray(x) for name, x in fitted.scaling.arrays().items()}, temporary)
        data = {
            "format": "torchcram-estimator",
            "format_version": VERSION,
            "kind": type(self).__name__,
            "config": self.config.to_dict(),
            "network": fitted.networks[0].config.to_dict(),
            "unit": fitted.unit,
            "classes": fitted.classes,
            "channels": fitted.channels,
        }
        with replacing(folder / _CONFIG) as temporary:
            temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | None = None) -> Self:
        """The inverse of `save`."""
        folder = Path(path)
        try:
            data = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{folder} holds no estimator: it has no {_CONFIG}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{folder / _CONFIG} is damaged: {error}") from error
        if data.get("format") != "torchcram-estimator" or data.get("kind") != cls.__name__:
            raise ValueError(f"{folder} holds a {data.get('kind', 'file of another kind')}, not a {cls.__name__}")
        if data.get("format_version") != VERSION:
            raise ValueError(f"{folder} is of format version {data.get('format_version')!r}; upgrade torchcram")
        made = cls(device=device)
        made.config = EstimatorConfig.from_dict(data["config"])
        networks = []
        try:
            for number in range(made.config.members):
                network = Network(NetworkConfig.from_dict(data["network"]))
                network.load_state_dict(load_file(folder / f"member-{number}.safetensors"))
                networks.append(network.to(made.device).eval())
            scaling = Scaling.of(load_arrays(folder / _SCALING))
        except (OSError, SafetensorError, RuntimeError, KeyError) as error:
            raise ValueError(f"{folder} is incomplete or damaged: {error}") from error
        made._fitted = _Fitted(
            networks=networks, scaling=scaling, unit=data["unit"], classes=data["classes"], channels=data["channels"]
        )
        return made

    def _series(self, data: Any) -> Series:
        fitted = self._ready()
        series = (
            data
            if isinstance(data, Series)
            else as_series({**data, "y": None} if isinstance(data, Mapping) else data, per_step=self.per_step)
        )
        if len(series.channels) != len(fitted.channels):
            raise ValueError(
                f"the data have {len(series.channels)} features; the model was fitted to {len(fitted.channels)}"
            )
        return series

    def _ready(self) -> _Fitted:
        if self._fitted is None:
            raise ValueError(f"this {type(self).__name__} has not been fitted yet; call fit first")
        return self._fitted

    def _check(self, series: Series, like: Series | None = None) -> None:
        if series.per_step != self.per_step and len(series.times) != len(series.ids):
            wanted = "time stamp" if self.per_step else "sample"
            raise ValueError(f"{type(self).__name__} needs a label for each {wanted}")
        if like is not None and len(series.channels) != len(like.channels):
            raise ValueError(f"validation has {len(series.channels)} features, training {len(like.channels)}")
        if like is None and len(np.unique(series.labels[series.labels != UNKNOWN])) < 2:
            raise ValueError("there is nothing to tell apart: the labels are all the same, or missing")


class CramClassifier(_Estimator):
    """One label for each sample of irregular series.

    classifier = CramClassifier(epochs=5)
    classifier.fit({"X": X, "time": time, "y": y})      # X [samples, steps, features], NaN = not measured
    classifier.predict_proba({"X": X, "time": time})    # [samples, classes]
    """

    per_step = False

    def classify(self, data: Any) -> Array:
        """The same as `predict`, by the name that PyPOTS gives it."""
        return self.predict(data)


class CramLabeller(_Estimator):
    """One label for each time stamp: `y` [samples, steps], NaN where there is none."""

    per_step = True
    defaults: ClassVar[Mapping[str, Any]] = {"features": "values"}


@dataclass(frozen=True, kw_only=True)
class _Fitted:
    """What a fit leaves."""

    networks: list[Network]
    scaling: Scaling
    unit: float
    classes: list[Any]
    channels: list[str]


def _config(settings: Mapping[str, Any]) -> EstimatorConfig:
    """Settings by name, each put where it belongs."""
    homes = {
        "network": {"layout", "features", "answer", "hide"},
        "fit": set(FitConfig.__dataclass_fields__),
        "": set(EstimatorConfig.__dataclass_fields__) - {"network", "fit"},
    }
    parts: dict[str, dict[str, Any]] = {home: {} for home in homes}
    for name, value in settings.items():
        home = next((home for home, names in homes.items() if name in names), None)
        if home is None:
            allowed = ", ".join(sorted(set().union(*homes.values())))
            raise ValueError(f"{name} is not a setting; allowed: {allowed}")
        parts[home][name] = value
    return EstimatorConfig.from_dict({**parts[""], "network": parts["network"], "fit": parts["fit"]})


def _names(train: Any, y: Any) -> list[Any] | None:
    """The labels that occur, as they are; None for a `Series`, which has names for them."""
    if isinstance(train, Series):
        return None
    given = train.get("y") if isinstance(train, Mapping) and y is None else y
    if isinstance(train, str | os.PathLike):
        return None
    if given is None:
        raise ValueError("there are no labels: give y, or a dict that has it")
    labels = np.asarray(given)
    if labels.dtype.kind == "f":
        labels = labels[~np.isnan(labels)]
        if (labels % 1 == 0).all():
            labels = labels.astype(np.int64)
    return list(np.unique(labels).tolist())


def _tokens(series: Series, layout: Layout, channels: Sequence[str]) -> tuple[Array, list[dict[str, float]]]:
    """When each token of a sample is, and what was measured then."""
    if layout == "events":
        events = series.events()
        pairs = zip(events.channel, events.value, strict=True)
        return events.times, [{channels[channel]: float(value)} for channel, value in pairs]
    measured = [
        {name: float(value) for name, value in zip(channels, row, strict=True) if not np.isnan(value)}
        for row in series.values
    ]
    return series.times, measured


def _parted(series: Series, seed: int) -> tuple[Series, Series]:
    """To learn from and to choose by; no group is in both."""
    names = np.unique(series.groups)
    if len(names) < 2:
        raise ValueError("there are too few samples to keep some apart; give val")
    order = np.random.default_rng(seed).permutation(names)
    kept = np.isin(series.groups, order[: max(1, round(_HELD_OUT * len(names)))])
    return series.take(np.flatnonzero(~kept)), series.take(np.flatnonzero(kept))


@contextmanager
def _bar(config: EstimatorConfig) -> Iterator[Any]:
    """Shows how far a fit has come."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (config.progress and console.is_terminal)) as bar:
        task = bar.add_task("fitting", total=None)

        def advance(member: int, epoch: Epoch, epochs: int) -> None:
            reads = "" if epoch.reads is None else f", reads {epoch.reads:.1%}"
            bar.update(
                task,
                total=config.members * epochs,
                completed=member * epochs + epoch.number,
                description=f"validation loss {epoch.val_loss:.4f}{reads}",
            )

        yield advance
