"""SRCD, Sparse Retrieval in Continuous Dynamics: noisy dynamics at irregular times, with a few facts to remember."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchcram.config import InputConfig, OutputConfig, TokenField
from torchcram.draws import Draws
from torchcram.ops import decay_scan
from torchcram.strict import StrictConfig, check_integer, check_number, reject
from torchcram.tasks.bindings import Stores
from torchcram.tasks.task import Examples

DYNAMICS, STORE, RECURRING, NOVEL, OVERRIDDEN = range(5)

VARIANTS: Mapping[str, Mapping[str, float | int]] = {
    "srcd": {},
    "novel": {"recurring": 0.0},
    "two-token": {"gap": 3},
    "zipf": {"zipf": 1.0},
    "long": {"length": 131_072},
    "override": {"overridden": 0.1},
    "drift": {"drift": 0.5},
    "stream": {"table": 1},
}
"""Settings of each variant that differ from the plain benchmark."""

_MEMORY = 0.95  # of the dynamics from one position to the next
_SHAPE = 1.5  # of the Lomax law of the gaps
_SHORTEST, _LONGEST = 0.1, 1000.0  # gaps are clipped to this


@dataclass(frozen=True, kw_only=True)
class SrcdConfig(StrictConfig):
    """The settings of a variant of SRCD."""

    length: int = 2048
    """N, positions of a sequence."""
    queries: float = 0.05
    """Share of positions that ask for an earlier value."""
    recurring: float = 0.7
    """Share of bindings that come from the fixed table; the others are fresh."""
    patterns: int = 100
    """Bindings in the fixed table."""
    novel_keys: int = 4096
    """Keys that fresh bindings are drawn from."""
    values: int = 64
    """Values a key can have."""
    amplitude: float = 0.5
    """β of the dynamics."""
    frequency: float = 1.0
    """ω of the dynamics."""
    noise: float = 0.1
    """Standard deviation of the dynamics' noise; its square is the least possible error."""
    gap: int = 0
    """0: key and value come together; above: the value comes up to this many positions after its key."""
    zipf: float = 0.0
    """Exponent of the power law of pattern frequencies; 0: all alike."""
    table: int = 0
    """Seed of the fixed table."""
    overridden: float = 0.0
    """Share of the patterns that a sequence binds to another value than the table does: what was stored last counts."""
    rebound: int = 1
    """How often such a sequence binds the key before it is asked for, each time to another value."""
    drift: float = 1.0
    """From this share of a sequence on, stores follow another table of the same keys; 1: never."""

    def __post_init__(self) -> None:
        check_integer("task.length", self.length, 1)
        check_number("task.queries", self.queries, 0, 0.5, open_low=True)
        check_number("task.recurring", self.recurring, 0, 1)
        check_integer("task.patterns", self.patterns, 1)
        check_integer("task.novel_keys", self.novel_keys, 1)
        check_integer("task.values", self.values, 2)
        check_number("task.amplitude", self.amplitude, 0)
        check_number("task.frequency", self.frequency, 0)
        check_number("task.noise", self.noise, 0, open_low=True)
        check_integer("task.gap", self.gap, 0)
        check_number("task.zipf", self.zipf, 0)
        check_integer("task.table", self.table, 0)
        check_number("task.overridden", self.overridden, 0, 1)
        check_integer("task.rebound", self.rebound, 1)
        check_number("task.drift", self.drift, 0, 1)
        if self.bindings < 1:
            reject("task.length", self.length, f"at least {math.ceil(0.5 / self.queries)}, to hold one query")
        if (self.rebound + 1) * self.bindings * (self.gap + 1) > self.length:
            reject("task.gap", self.gap, "a gap with room for every store and query in its own stretch of positions")
        if self.gap and self.rebound > 1:
            reject("task.rebound", self.rebound, "1 where keys and values come apart (gap > 0)")
        if self.rebound >= self.values:
            reject("task.rebound", self.rebound, f"less than the number of values, {self.values}")
        if self.most_novel > self.novel_keys:
            reject("task.novel_keys", self.novel_keys, f"at least {self.most_novel}, so that fresh keys differ")

    @property
    def bindings(self) -> int:
        """Queries in a sequence, each with a store of its own."""
        return round(self.queries * self.length)

    @property
    def overrides(self) -> bool:
        """Whether a sequence can bind a recurring key to another value than the table."""
        return self.recurring > 0 and (self.overridden > 0 or self.drift < 1)

    @property
    def most_novel(self) -> int:
        """More novel bindings than a sequence will ever have: ten standard deviations above their mean."""
        mean = self.bindings * (1 - self.recurring)
        return min(self.bindings, math.ceil(mean + 10 * math.sqrt(mean * self.recurring)))


class Srcd:
    """The benchmark. One position carries `key` and `value` ids (0 = none), the channel v_{t-1}, and the gap Δτ_t.

    A *store* has key and value, a *query* only the key: answer with the value stored under it. All other positions are
    *dynamics*: predict v_t. With N = 10, one binding and noise 0.1, a sequence may look like this:

        >>> task = Srcd(SrcdConfig(length=10, queries=0.1, patterns=2, novel_keys=4, values=3))
        >>> examples = task.batch(seed=0, step=0, rows=range(1))
        >>> examples.inputs["key"][0].tolist()
        [0, 0, 0, 3, 0, 0, 3, 0, 0, 0]
        >>> examples.inputs["value"][0].tolist()
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
        >>> examples.targets["value"][0].tolist()
        [-100, -100, -100, -100, -100, -100, 0, -100, -100, -100]

    Value ids are one more than the value, since 0 says that there is none. `kind` tells dynamics, stores, recurring and
    novel queries apart, and *overridden* ones, of a recurring key that the sequence has bound to another value. It is
    for reports; the model never sees it.
    """

    name = "srcd"
    main = "value"
    weights: Mapping[str, float] = {"value": 1.0, "dynamics": 0.05}  # there is far more dynamics than retrieval

    def __init__(self, config: SrcdConfig | None = None) -> None:
        self.config = config or SrcdConfig()
        self._tables: dict[torch.device, _Table] = {}

    @classmethod
    def variant(cls, name: str, **settings: float | int) -> Srcd:
        """A variant by name (`VARIANTS`), with settings of one's own on top."""
        if name not in VARIANTS:
            reject("variant", name, ", ".join(VARIANTS))
        return cls(SrcdConfig.from_dict({**VARIANTS[name], **settings}))

    @property
    def inputs(self) -> InputConfig:
        c = self.config
        keys = TokenField(name="key", vocabulary=1 + c.patterns + c.novel_keys)
        return InputConfig(tokens=(keys, TokenField(name="value", vocabulary=1 + c.values)), channels=1)

    @property
    def outputs(self) -> tuple[OutputConfig, ...]:
        return (
            OutputConfig(name="value", kind="labels", size=self.config.values),
            OutputConfig(name="dynamics", kind="regression", size=1),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("dynamics", "store", "recurring", "novel", *(("overridden",) if self.config.overrides else ()))

    @property
    def length(self) -> int:
        return self.config.length

    @property
    def patterns(self) -> int:
        return self.config.patterns

    @property
    def optimum(self) -> float:
        """Expected share of queries that memory cannot answer: the least reads if no recurrent state holds bindings.

        Those are the novel and the overridden ones. After a drift a little more is overridden than this says, by other
        stores of the same pattern.
        """
        c = self.config
        as_ever = (1 - c.overridden) * (1 - (1 - c.drift) ** (c.rebound + 1))
        return c.bindings * (1 - c.recurring * as_ever) / c.length

    @property
    def static_bound(self) -> float:
        """Share of queries: the least reads for a router without any recall."""
        return self.config.bindings / self.config.length

    @property
    def floor(self) -> float:
        """The least possible mean squared error of the dynamics."""
        return self.config.noise**2

    def batch(self, *, seed: int, step: int, rows: range, device: torch.device | str = "cpu") -> Examples:
        """Rows of the batch of a step; see the class for what is in it."""
        c = self.config
        number = torch.arange(rows.start, rows.stop, rows.step, device=device)
        draws = Draws(seed=seed, step=step, rows=number)
        batch, length, bindings = len(rows), c.length, c.bindings

        recurs = draws.uniform(0, bindings) < c.recurring
        pattern = self._pattern(draws)
        fresh = self._fresh(draws, recurs)
        table = self._table(number.device)
        key = torch.where(recurs, table.keys[pattern], table.novel[fresh])
        value = torch.where(recurs, table.values[pattern], draws.integers(2, bindings) % c.values)
        asks = torch.where(recurs, RECURRING, NOVEL)

        store, told, query = self._places(draws)
        stores = Stores(at=store[..., 0], told=told[..., 0], key=key, value=value)
        if c.overrides:
            stores = self._rebound(draws, recurs, pattern, stores, store)
            last = stores.last_before(key, query)
            asks = torch.where(recurs & (last != value), OVERRIDDEN, asks)
            value = last
        blank = torch.zeros(batch, length, dtype=torch.int64, device=device)
        keys = stores.put(blank, stores.at, stores.key).scatter(1, query, key)
        values = stores.put(blank, stores.told, stores.value + 1)
        target = torch.full_like(blank, -100).scatter(1, query, value)
        kind = stores.put(stores.put(blank, stores.at, STORE), stores.told, STORE)
        kind = kind.scatter(1, query, asks).to(torch.int8)
        asked = torch.full_like(blank, -1).scatter(1, query, torch.where(recurs, pattern, -1))

        dt, before, after = self._dynamics(draws)
        return Examples(
            inputs={"key": keys, "value": values, "channels": before.unsqueeze(-1)},
            dt=dt,
            targets={"value": target, "dynamics": after.unsqueeze(-1)},
            kind=kind,
            pattern=asked,
        )

    def losses(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """Cross-entropy in nats a query, and the dynamics' squared error over twice the noise's variance, in nats too.

        The latter is the negative log-likelihood under the true noise, up to a constant.
        """
        logits = predictions["value"].flatten(0, 1)
        value = torch.nn.functional.cross_entropy(logits, examples.targets["value"].flatten(), ignore_index=-100)
        return {"value": value, "dynamics": self._error(predictions, examples).mean() / (2 * self.floor)}

    def asked(self, examples: Examples) -> Tensor:
        """Queries."""
        return examples.kind >= RECURRING

    def scored(self, examples: Examples) -> dict[str, Tensor]:
        """How many queries and dynamics positions there are."""
        return {"value": self.asked(examples).sum(), "dynamics": (examples.kind == DYNAMICS).sum()}

    def counts(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        right = predictions["value"].argmax(-1) == examples.targets["value"]
        recurring, novel, overridden = (examples.kind == kind for kind in (RECURRING, NOVEL, OVERRIDDEN))
        dynamics = examples.kind == DYNAMICS
        return {
            "positions": torch.tensor(examples.kind.numel(), device=right.device),
            "recurring": recurring.sum(),
            "recurring_right": (right & recurring).sum(),
            "novel": novel.sum(),
            "novel_right": (right & novel).sum(),
            "overridden": overridden.sum(),
            "overridden_right": (right & overridden).sum(),
            "dynamics": dynamics.sum(),
            "dynamics_error": (self._squares(predictions, examples) * dynamics).sum(),
        }

    def metrics(self, counts: Mapping[str, float]) -> dict[str, float | None]:
        def share(right: float, of: float) -> float | None:
            return right / of if of else None

        kinds = self.kinds[RECURRING:]
        queries = sum(counts[kind] for kind in kinds)
        return {
            "accuracy": share(sum(counts[f"{kind}_right"] for kind in kinds), queries),
            **{f"accuracy_{kind}": share(counts[f"{kind}_right"], counts[kind]) for kind in kinds},
            "dynamics_mse": share(counts["dynamics_error"], counts["dynamics"]),
            "dynamics_floor": self.floor,
            "opt": share(queries - counts["recurring"], counts["positions"]),
            "static_bound": share(queries, counts["positions"]),
        }

    def _squares(self, predictions: Mapping[str, Tensor], examples: Examples) -> Tensor:
        return (predictions["dynamics"].float() - examples.targets["dynamics"]).square().squeeze(-1)

    def _error(self, predictions: Mapping[str, Tensor], examples: Examples) -> Tensor:
        """Squared errors [B, N], scaled so that their mean is the mean over dynamics positions."""
        dynamics = (examples.kind == DYNAMICS).float()
        return self._squares(predictions, examples) * dynamics / dynamics.mean().clamp_min(1e-9)

    def _pattern(self, draws: Draws) -> Tensor:
        """Which pattern each binding would be, [B, bindings]: all alike, or by a power law of their rank."""
        c = self.config
        if not c.zipf:
            return draws.integers(3, c.bindings) % c.patterns
        weight = torch.arange(1, c.patterns + 1, dtype=torch.float64, device=draws.rows.device) ** -c.zipf
        bounds = (weight.cumsum(0) / weight.sum())[:-1]
        return torch.bucketize(draws.uniform(3, c.bindings), bounds)

    def _fresh(self, draws: Draws, recurs: Tensor) -> Tensor:
        """A number of a novel key for each binding [B, bindings], no two alike among those that do not recur."""
        c = self.config
        if c.recurring == 1:
            return torch.zeros_like(recurs, dtype=torch.int64)
        order = draws.order(1, c.novel_keys)
        if c.bindings <= c.novel_keys:
            return order[:, : c.bindings]
        return order.gather(1, ((~recurs).cumsum(1) - 1).clamp(0, c.novel_keys - 1))

    def _places(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """Where each binding's key can be stored and its value told [B, bindings, rebound], and where it is asked for.

        Positions are cut into stretches of gap + 1; each event has one to itself, so that nothing comes between a key
        and its value. Two random stretches make a binding: the earlier stores, the later asks. Rebound keys take more.
        """
        c = self.config
        width, events = c.gap + 1, c.rebound + 1
        chosen = draws.order(4, c.length // width)[:, : events * c.bindings].view(len(draws.rows), c.bindings, events)
        *stores, query = (chosen.sort(2).values * width).unbind(2)
        store = torch.stack(stores, dim=2)
        if not c.gap:
            return store, store, query
        told = store + 1 + (draws.integers(5, c.bindings) % c.gap).unsqueeze(2)
        return store, told, query + draws.integers(6, c.bindings) % width

    def _rebound(self, draws: Draws, recurs: Tensor, pattern: Tensor, stores: Stores, at: Tensor) -> Stores:
        """The stores with what the sequence binds anew; at [B, bindings, rebound] is where they can be."""
        c = self.config
        table = self._table(draws.rows.device)
        times = torch.arange(c.rebound, device=at.device)
        other = draws.uniform(12, c.patterns) < c.overridden
        shift = draws.integers(13, c.patterns) % (c.values - 1)
        overridden = (other.gather(1, pattern) & recurs).unsqueeze(2)
        drawn = (
            table.values[pattern].unsqueeze(2) + 1 + (shift.gather(1, pattern).unsqueeze(2) + times) % (c.values - 1)
        )
        value = torch.where(overridden, drawn % c.values, stores.value.unsqueeze(2))
        drifted = recurs.unsqueeze(2) & ~overridden & (at >= c.drift * c.length)
        value = torch.where(drifted, table.later[pattern].unsqueeze(2), value)
        told = at + (stores.told - stores.at).unsqueeze(2)
        return Stores(
            at=at.flatten(1),
            told=told.flatten(1),
            key=stores.key.unsqueeze(2).expand_as(at).flatten(1),
            value=value.flatten(1),
            real=(overridden | (times == 0)).flatten(1),
        )

    def _dynamics(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """Gaps Δτ_t, v_{t-1} and v_t, [B, N] float32; worked out in float64, so that devices agree."""
        c = self.config
        dt = _gap(draws.uniform(7, c.length))
        change = c.amplitude * torch.sin(c.frequency * dt) + c.noise * draws.normal(8, c.length)
        mean, deviation = self._stationary
        first = mean + deviation * draws.normal(9, 1)
        still = torch.zeros_like(change, dtype=torch.bool)
        rate = change.new_tensor([-math.log(_MEMORY)])
        v, _ = decay_scan(change.unsqueeze(-1), rate, torch.ones_like(change), still, first)
        v = v.squeeze(-1)
        return dt.float(), torch.cat([first, v[:, :-1]], dim=1).float(), v.float()

    @cached_property
    def _stationary(self) -> tuple[float, float]:
        """Mean and standard deviation of v once it has forgotten its start, by quadrature over the gaps."""
        c = self.config
        push = c.amplitude * torch.sin(c.frequency * _gap((torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000))
        variance = float(push.var(unbiased=False)) + c.noise**2
        return float(push.mean()) / (1 - _MEMORY), math.sqrt(variance / (1 - _MEMORY**2))

    def _table(self, device: torch.device) -> _Table:
        """The fixed table. Its key ids are scattered among all ids, so that nothing but memory tells them apart."""
        if device not in self._tables:
            c = self.config
            draws = Draws(seed=c.table, step=0, rows=torch.zeros(1, dtype=torch.int64, device=device))
            ids = 1 + draws.order(10, c.patterns + c.novel_keys)[0]
            values = draws.integers(11, c.patterns)[0] % c.values
            later = (values + 1 + draws.integers(14, c.patterns)[0] % (c.values - 1)) % c.values
            self._tables[device] = _Table(keys=ids[: c.patterns], values=values, later=later, novel=ids[c.patterns :])
        return self._tables[device]


@dataclass(frozen=True, kw_only=True)
class _Table:
    keys: Tensor
    """[patterns]: key id of each pattern."""
    values: Tensor
    """[patterns]: its value."""
    later: Tensor
    """[patterns]: its value after the drift; another one."""
    novel: Tensor
    """[novel_keys]: the other key ids."""


def _gap(uniform: Tensor) -> Tensor:
    """Lomax-distributed gaps (numpy's `pareto`), clipped."""
    return ((1 - uniform) ** (-1 / _SHAPE) - 1).clamp(_SHORTEST, _LONGEST)
