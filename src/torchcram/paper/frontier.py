"""Quality against attention, and against time: each model along the setting that trades the one for the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from torchcram.bench.steps import forward_seconds
from torchcram.paper import prices
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.results import Row

MODELS = ("cram", "gate", "seqboat+cost", "mod", "entropy")
TEXT = "text", "text-held-out"
"""Files that language modelling needs (`--data`), one to learn from and another."""
_QUALITY = {"srcd": "accuracy", "text": "bits_per_byte"}
_ALIKE = {"accuracy": 0.005, "bits_per_byte": 0.01}
"""Half a point of accuracy, or a hundredth of a bit: models that differ by less are as good."""
_CHEAPER = 0.05  # of a cost: less is as much
_REPEATS = 9  # forward passes that a time is the median of


def wanted(size: Size) -> list[Wanted]:
    """All models on SRCD."""
    return _all(prices.wanted(MODELS, size))


def run(setup: Setup) -> Iterator[Row]:
    """SRCD: a row for each run, with the time of a forward pass, and a mean for each place on a curve."""
    yield from _curves(setup, "srcd", prices.wanted(MODELS, setup.size))


def stages_on_text(setup: Setup) -> list[list[Wanted]]:
    """All that is trained on the files that are given."""
    return [_all(_on_text(setup))]


def run_on_text(setup: Setup) -> Iterator[Row]:
    """The same of language modelling."""
    yield from _curves(setup, "text", _on_text(setup))


def look(setup: Setup, trained: Mapping[str, Sequence[Trained]]) -> None:
    """Time a forward pass of the first run of each place, and keep it beside the run."""
    every = [runs[0] for runs in trained.values() if runs and runs[0].seed == 0]
    kept = {run.folder: run.told("forward") for run in every}
    left = [run for run in every if kept[run.folder] is None]
    if {told["forward_on"] for told in kept.values() if told is not None} - {setup.size.device}:
        return  # of another kind of machine: its times and this one's are not to be compared
    # In turns, all of them: so whatever else the machine does touches all alike.
    seconds = forward_seconds([run.trainer() for run in left], repeats=_REPEATS) if left else []
    for run, time in zip(left, seconds, strict=True):
        run.tell("forward", {"forward_ms": 1000 * time, "forward_on": setup.size.device})


def _on_text(setup: Setup) -> Mapping[str, Sequence[Wanted]]:
    files = tuple(f"task.{field}={setup.data[name]}" for field, name in zip(("train", "held_out"), TEXT, strict=True))
    return _possible(setup, prices.on_text(MODELS, setup.size, files))


def _all(curves: Mapping[str, Sequence[Wanted]]) -> list[Wanted]:
    return [each for places in curves.values() for each in places]


def _possible(setup: Setup, curves: Mapping[str, Sequence[Wanted]]) -> dict[str, Sequence[Wanted]]:
    """Those of models that can be made as small as CRAM; of the others it is said that they are left out."""
    found = {}
    for model, places in curves.items():
        (job, *_) = places[0].jobs(setup.size, setup.out)
        try:
            job.check()
        except ValueError as error:
            if model == "cram":
                raise
            setup.say(f"{model} is left out: {error}")
        else:
            found[model] = places
    return found


def _curves(setup: Setup, task: str, curves: Mapping[str, Sequence[Wanted]]) -> Iterator[Row]:
    trained = train(setup, _all(curves))
    look(setup, trained)
    means: list[dict[str, float | str | None]] = []
    for model, places in curves.items():
        for place in places:
            runs = trained[place.name]
            rows = [_row(run) for run in runs]
            where: Row = {"task": task, "model": model, "place": place.name.removeprefix(f"{model}, ")}
            for row in rows:
                yield measured(setup, {"what": "run on the frontier", "claim": "srcd/reads", **where, **row})
            means.append({**where, **{name: _mean(rows, name) for name in (_QUALITY[task], "reads", "forward_ms")}})
    for each in means:
        yield measured(
            setup,
            {
                "what": "place on the frontier",
                "claim": "srcd/reads",
                **each,
                **{
                    f"unbeaten by {cost}": unbeaten(each, means, _QUALITY[task], cost)
                    for cost in ("reads", "forward_ms")
                },
            },
        )


def _row(run: Trained) -> Row:
    kept = (
        "accuracy",
        "accuracy_novel",
        "bits_per_byte",
        "reads",
        "layer_reads",
        "pairs",
        "opt",
        "parameters",
        "steps",
    )
    return {
        "seed": run.seed,
        **{name: run.row[name] for name in kept if name in run.row},
        "released_at": run.released_at,
        **(run.told("forward") or {}),
    }


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Over the runs that have it: a time is taken of one of them."""
    values = [row[name] for row in rows if name in row]
    return None if any(value is None for value in values) else statistics.mean(map(float, values))  # type: ignore[arg-type]


def unbeaten(place: Mapping[str, object], places: Sequence[Mapping[str, object]], quality: str, cost: str) -> bool:
    """Whether no other model's place is as good for less, or better for as much; but for what does not matter."""
    sign = -1.0 if quality == "bits_per_byte" else 1.0

    def pair(each: Mapping[str, object]) -> tuple[float, float]:
        good, price = each[quality], each[cost]
        assert isinstance(good, float)
        assert isinstance(price, float)
        return sign * good, price

    good, price = pair(place)
    alike = _ALIKE[quality]
    theirs = [pair(each) for each in places if each["model"] != place["model"]]
    return not any(
        (other >= good - alike and spent < price * (1 - _CHEAPER))
        or (other > good + alike and spent <= price * (1 + _CHEAPER))
        for other, spent in theirs
    )
