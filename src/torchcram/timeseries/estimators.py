"""`fit` and `predict` for people who have irregular series: CRAM behind the interface of PyPOTS and scikit-learn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.strict import reject
from torchcram.timeseries.arrays import Placed, as_series, class_names, gathered, placed
from torchcram.timeseries.batches import usual_gap
from torchcram.timeseries.explaining import Explained, explain
from torchcram.timeseries.fitting import Epoch, Fitting, predict
from torchcram.timeseries.metrics import accuracy
from torchcram.timeseries.network import Network, NetworkConfig
from torchcram.timeseries.parts import alike, parted, same_names
from torchcram.timeseries.scaling import Scaling
from torchcram.timeseries.series import UNKNOWN, Array, Series
from torchcram.timeseries.settings import EstimatorConfig, configure
from torchcram.training import start
from torchcram.training.distributed import World

VERSION = 1
_FORMAT = "torchcram-estimator"
_CONFIG, _SCALING = "estimator.json", "scaling.safetensors"


class _Estimator:
    """What classifiers and labellers have in common."""

    per_step: ClassVar[bool]
    defaults: ClassVar[Mapping[str, Any]] = {}
    _estimator_type = "classifier"  # for scikit-learn

    def __init__(self, *, device: str | None = None, **settings: Any) -> None:
        """settings: of `EstimatorConfig`, `NetworkConfig` (layout, features, …) and `FitConfig`, all by name.

        device: `cpu` or `cuda`; default: the GPU if there is one.
        """
        self._given = {"device": device, **settings}
        self.config = configure({**self.defaults, **settings})
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

    @property
    def classes_(self) -> Array:
        """The same, by the name that scikit-learn gives it."""
        return np.asarray(self.classes)

    def fit(self, X: Any, val: Any = None, y: Any = None) -> Self:
        """Learn from a dict, an `.h5` file or a `Series`, and choose by another: `fit(train, val)`; or from arrays.

        Arrays: `fit(X, y)`, and `fit(X, y, val)`; `val` may also be a pair (X, y). Without one, 15 % of the samples
        are kept apart to choose by.
        """
        val, y = _sorted_out(val, y)
        series, names = self._learned(X, y)
        if val is None:
            series, other = parted(series, self.config.fit.seed)
        else:
            pair = val if isinstance(val, tuple) else (val, None)
            other = pair[0] if isinstance(pair[0], Series) else self._placed(gathered(*pair), names).series
            alike(series, other, "validation")
        series, other = self._timed(series), self._timed(other)
        scaling, unit = Scaling.fit(series), usual_gap(series)
        shape = {"channels": len(series.channels), "statics": len(series.static_names), "classes": len(series.classes)}
        given = dict(self.config.network)
        if isinstance(given.get("interval"), int | float):
            given["interval"] /= unit  # as the network's times
        config = NetworkConfig.from_dict({**shape, "per_step": self.per_step, **given}).with_model(
            self.config.model, self.config.preset, **self.config.changes
        )
        networks: list[Network] = []
        history: list[list[Epoch]] = []
        generators = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(generators), _bar(self.config) as advance:
            for member in range(self.config.members):
                fit = self.config.fit.override({"seed": self.config.fit.seed + member})
                torch.manual_seed(fit.seed)
                network = Network(config)
                if self.config.start.run:
                    start.load_layers(network.model, self.config.start.run, World(device=torch.device("cpu")))
                    start.freeze(network.model, self.config.start.frozen)
                fitting = Fitting(
                    network, scaling.apply(series), scaling.apply(other), fit, unit=unit, device=self.device
                )
                history.append([])
                for epoch in fitting.run():
                    history[-1].append(epoch)
                    advance(member, epoch, fitting.epochs)
                networks.append(network.eval())
        self.history = history
        self._fitted = _Fitted(
            networks=networks, scaling=scaling, unit=unit, classes=names, channels=list(series.channels)
        )
        return self

    def predict_proba(self, data: Any, *, reads: str = "routed") -> Array:
        """Probabilities of the classes: [samples, K], or [samples, steps, K] for labels of time stamps.

        Of a `Series` those of time stamps are [T, K], in its order. NaN where there is no time stamp. reads: `routed`,
        as the model decides; `dense`, all time stamps read; `off`, none does.
        """
        series, rows = self._seen(data)
        said = self._said(series, reads)
        if rows is None:
            return said
        found = np.full((*rows.shape, said.shape[1]), np.nan)
        found[rows >= 0] = said[rows[rows >= 0]]
        return found

    def predict(self, data: Any) -> Array:
        """The most likely labels, as they were given to `fit`; NaN, or no word, where there is no time stamp."""
        said = self.predict_proba(data)
        nowhere = np.isnan(said[..., 0])
        labels: Array = self.classes_[np.nan_to_num(said).argmax(-1)]
        if not nowhere.any():
            return labels
        return np.where(nowhere, "" if labels.dtype.kind == "U" else np.nan, labels)

    def score(self, X: Any, y: Any = None) -> float:
        """Share of the labels that is right."""
        series, _ = self._learned(X, y, known=self.classes)
        known = series.labels != UNKNOWN
        return accuracy(series.labels[known], self._said(series, "routed")[known])

    def explain(self, sample: Any) -> list[Explained]:
        """What the first model does at each token of a sample: which read, which are recalled, which ignored."""
        fitted = self._ready()
        series, _ = self._seen(sample)
        if len(series) != 1:
            raise ValueError(f"explain is for one sample; there are {len(series)}")
        return explain(
            fitted.networks[0],
            fitted.scaling.apply(self._timed(series)),
            replace(series, channels=tuple(fitted.channels)),
            unit=fitted.unit,
            device=self.device,
            context=self.config.fit.context if self.per_step else None,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a folder."""
        fitted, folder = self._ready(), Path(path)
        data = {
            "format": _FORMAT,
            "format_version": VERSION,
            "kind": type(self).__name__,
            "settings": {name: value for name, value in self._given.items() if name != "device"},
            "network": fitted.networks[0].config.to_dict(),
            "unit": fitted.unit,
            "classes": fitted.classes,
            "channels": fitted.channels,
        }
        text = json.dumps(data, indent=1) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        for number, network in enumerate(fitted.networks):
            tensors = {name: value.detach().contiguous().cpu() for name, value in network.state_dict().items()}
            with replacing(folder / f"member-{number}.safetensors") as temporary:
                save_file(tensors, temporary)
        with replacing(folder / _SCALING) as temporary:
            save_arrays({name: np.ascontiguousarray(x) for name, x in fitted.scaling.arrays().items()}, temporary)
        with replacing(folder / _CONFIG) as temporary:
            temporary.write_text(text, encoding="utf-8")

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
        if data.get("format") != _FORMAT or data.get("kind") != cls.__name__:
            raise ValueError(f"{folder} holds a {data.get('kind', 'file of another kind')}, not a {cls.__name__}")
        if data.get("format_version") != VERSION:
            raise ValueError(f"{folder} is of format version {data.get('format_version')!r}; upgrade torchcram")
        try:
            made = cls(device=device, **data["settings"])
            networks = []
            for number in range(made.config.members):
                network = Network(NetworkConfig.from_dict(data["network"]))
                network.load_state_dict(load_file(folder / f"member-{number}.safetensors"))
                networks.append(network.to(made.device).eval())
            made._fitted = _Fitted(
                networks=networks,
                scaling=Scaling.of(load_arrays(folder / _SCALING)),
                **{name: data[name] for name in ("unit", "classes", "channels")},
            )
        except (OSError, SafetensorError, RuntimeError, KeyError) as error:
            raise ValueError(f"{folder} is incomplete or damaged: {error}") from error
        return made

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What it was made with, for scikit-learn."""
        return dict(self._given)

    def set_params(self, **settings: Any) -> Self:
        """Other settings; what was fitted is forgotten. For scikit-learn."""
        type(self).__init__(self, **{**self._given, **settings})
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know; asked for by it alone."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(three_d_array=True, two_d_array=False, allow_nan=True),
        )

    def _learned(self, X: Any, y: Any, known: list[Any] | None = None) -> tuple[Series, list[Any]]:
        """Samples with labels, and the labels as they were given."""
        if isinstance(X, Series):
            series, names = as_series(X, y), list(X.classes)
        else:
            given = gathered(X, y)
            names = class_names(given) if known is None else known
            series = self._placed(given, names).series
        if series.per_step != self.per_step and len(series.times) != len(series.ids):
            wanted = "time stamp" if self.per_step else "sample"
            raise ValueError(f"{type(self).__name__} needs a label for each {wanted}")
        if known is None and len(np.unique(series.labels[series.labels != UNKNOWN])) < 2:
            raise ValueError("there is nothing to tell apart: the labels are all the same, or missing")
        return series, names

    def _placed(self, given: Mapping[str, Any], names: list[Any] | None) -> Placed:
        return placed(given, classes=names, per_step=self.per_step)

    def _seen(self, data: Any) -> tuple[Series, Array | None]:
        """Samples to be judged, without their labels; for labels of time stamps, where each step is."""
        fitted = self._ready()
        rows = None
        if isinstance(data, Series):
            series = data
        else:
            series, rows = self._placed({**gathered(data), "y": None}, [])
        if len(series.channels) != len(fitted.channels):
            expected = len(fitted.channels)
            raise ValueError(f"the data have {len(series.channels)} features; the model was fitted to {expected}")
        same_names(series.channels, fitted.channels)
        return series, rows if self.per_step else None

    def _said(self, series: Series, reads: str) -> Array:
        """Probabilities [S, K] or [T, K]."""
        fitted = self._ready()
        scaled = fitted.scaling.apply(self._timed(series))
        policy = None if reads == "routed" else RoutingPolicy(reads=reads)  # type: ignore[arg-type]
        said, ledger = [], None
        for network in fitted.networks:
            if policy is not None and not isinstance(network.model, Cram):
                reject("reads", reads, "'routed' for a model that has no other way")
            found, executed = predict(
                network,
                scaled,
                unit=fitted.unit,
                device=self.device,
                policy=policy,
                context=self.config.fit.context,
                bf16=self.config.fit.bf16,
            )
            said.append(found)
            if executed is not None:
                ledger = executed if ledger is None else ledger + executed
        self.ledger = ledger
        return np.asarray(np.mean(said, axis=0))

    def _timed(self, series: Series) -> Series:
        """With the times that a network is told."""
        return series.by_order() if self.config.fit.times == "order" else series

    def _ready(self) -> _Fitted:
        if self._fitted is None:
            raise ValueError(f"this {type(self).__name__} has not been fitted yet; call fit first")
        return self._fitted


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


def _sorted_out(one: Any, other: Any) -> tuple[Any, Any]:
    """`val` and `y`, in whichever order they were given."""
    sets = [each for each in (one, other) if isinstance(each, Mapping | str | os.PathLike | Series | tuple)]
    labels = [each for each in (one, other) if each is not None and not any(each is found for found in sets)]
    if len(sets) > 1 or len(labels) > 1:
        raise ValueError("fit takes (train, val), (X, y) or (X, y, val)")
    return (sets[0] if sets else None), (labels[0] if labels else None)


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
