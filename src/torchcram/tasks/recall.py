"""Recall from one sequence alone: nothing recurs from one to the next, so there is nothing to learn by heart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcram.config import InputConfig, OutputConfig, TokenField
from torchcram.draws import Draws
from torchcram.strict import StrictConfig, check_flag, check_integer, check_number, reject
from torchcram.tasks.task import Examples

FILLER, STORE, NOVEL, OVERRIDDEN = range(4)
_NONE = -100  # target of a position that is not scored


@dataclass(frozen=True, kw_only=True)
class TokenTaskConfig(StrictConfig):
    """What these tasks have in common."""

    length: int = 256
    """N, positions of a sequence."""
    vocabulary: int = 8192
    """Tokens there are."""

    def __post_init__(self) -> None:
        check_integer("task.length", self.length, 2)
        check_integer("task.vocabulary", self.vocabulary, 4)


class TokenTask(ABC):
    """One stream of tokens, and an answer, also a token, wherever something is asked."""

    name: str
    main = "token"
    weights: Mapping[str, float] = {"token": 1.0}
    patterns = 0
    kinds: tuple[str, ...] = ("filler", "store", "novel")

    def __init__(self, config: TokenTaskConfig) -> None:
        self.config = config

    @property
    def inputs(self) -> InputConfig:
        return InputConfig(tokens=(TokenField(name="token", vocabulary=self.config.vocabulary),))

    @property
    def outputs(self) -> tuple[OutputConfig, ...]:
        return (OutputConfig(name="token", kind="labels", size=self.config.vocabulary),)

    @property
    def length(self) -> int:
        return self.config.length

    def batch(self, *, seed: int, step: int, rows: range, device: torch.device | str = "cpu") -> Examples:
        """Rows of the batch of a step."""
        number = torch.arange(rows.start, rows.stop, rows.step, device=device)
        tokens, target, kind = self.make(Draws(seed=seed, step=step, rows=number))
        return Examples(
            inputs={"token": tokens},
            dt=torch.ones(tokens.shape, device=device),
            targets={"token": target},
            kind=kind.to(torch.int8),
            pattern=torch.full_like(tokens, -1),
            answered=target != _NONE,
        )

    @abstractmethod
    def make(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, targets and kinds, all [B, N] int64."""

    def losses(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """Cross-entropy in nats a query."""
        logits, target = predictions["token"].flatten(0, 1), examples.targets["token"].flatten()
        return {"token": torch.nn.functional.cross_entropy(logits, target, ignore_index=_NONE)}

    def asked(self, examples: Examples) -> Tensor:
        """Queries."""
        return examples.kind >= NOVEL

    def scored(self, examples: Examples) -> dict[str, Tensor]:
        """How many queries there are."""
        return {"token": self.asked(examples).sum()}

    def counts(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        right = predictions["token"].argmax(-1) == examples.targets["token"]
        found = {"positions": torch.tensor(examples.kind.numel(), device=right.device)}
        for number, kind in enumerate(self.kinds[NOVEL:], start=NOVEL):
            found[kind] = (examples.kind == number).sum()
            found[f"{kind}_right"] = (right & (examples.kind == number)).sum()
        return found

    def metrics(self, counts: Mapping[str, float]) -> dict[str, float | None]:
        kinds = self.kinds[NOVEL:]
        queries = sum(counts[kind] for kind in kinds)
        least = queries / counts["positions"]
        return {
            "accuracy": sum(counts[f"{kind}_right"] for kind in kinds) / max(1, queries),
            "accuracy_recurring": None,
            **{f"accuracy_{kind}": counts[f"{kind}_right"] / counts[kind] if counts[kind] else None for kind in kinds},
            "opt": least,
            "static_bound": least,
        }


@dataclass(frozen=True, kw_only=True)
class MqarConfig(TokenTaskConfig):
    """The settings of multi-query associative recall."""

    pairs: int = 32
    """K, keys that a sequence binds."""
    power: float = 0.01
    """a of the law a · gap^(a - 1) of how long after the bindings a key is asked for."""
    rebound: float = 0.0
    """Share of the keys that are bound once more, to another value, before any is asked for."""
    last: bool = False
    """One key alone is asked for, at the end."""
    noise: bool = False
    """Everything else is random tokens, keys and values among them; else one that means nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("task.pairs", self.pairs, 1)
        check_number("task.power", self.power, 0, 1, open_low=True)
        check_number("task.rebound", self.rebound, 0, 1)
        check_flag("task.last", self.last)
        check_flag("task.noise", self.noise)
        # Blank and all keys in the lower half, a value for each binding in the upper.
        if self.vocabulary < (least := max(2 * (self.pairs + 1), 2 * self.stores - 1)):
            reject("task.vocabulary", self.vocabulary, f"at least {least}, so that keys differ, and values too")
        if self.room < (1 if self.last else self.pairs):
            least = 2 * self.stores + (2 if self.last else 2 * self.pairs)
            reject("task.length", self.length, f"at least {least}, to bind and ask for {self.pairs} keys")

    @property
    def again(self) -> int:
        """Keys that are bound twice."""
        return round(self.rebound * self.pairs)

    @property
    def stores(self) -> int:
        """Bindings, each of two tokens."""
        return self.pairs + self.again

    @property
    def room(self) -> int:
        """Pairs of positions after them."""
        return (self.length - 2 * self.stores) // 2


class Mqar(TokenTask):
    """Multi-query associative recall, as the zoology benchmark defines it: keys and values first, then questions.

    K keys, each followed by its value; later each key comes once more, after a gap that follows a power law, and there
    its value is the answer. Everything else is blank, as in that benchmark's published experiments, or with `noise`
    random tokens, as its generator has it by default. Keys come from the lower half of the vocabulary, values from the
    upper. Bindings are made afresh for every sequence.

    With `rebound`, some keys are bound twice, and the latest binding counts. Bindings then come in any order in which a
    key's second comes after its first, each as likely, so that a place does not settle whether its binding still holds.
    K = 3, one of them (5) bound twice; · is blank, and the answers are 12, 14 and 9:

        5 10  7 12  5 14  2 9  ·  ·  7 ·  5 ·  2 ·
    """

    name = "mqar"
    config: MqarConfig

    def __init__(self, config: MqarConfig | None = None) -> None:
        super().__init__(config or MqarConfig())
        self.kinds = (*TokenTask.kinds, *(("overridden",) if self.config.again else ()))

    def make(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        half = c.vocabulary // 2
        keys = 1 + draws.order(0, half - 1)[:, : c.pairs]
        values = half + draws.order(1, c.vocabulary - half)[:, : c.stores]
        # Those that are bound once more are any of them: the order of keys is that of the questions, by their gaps.
        again = draws.order(4, c.pairs)[:, : c.again]
        bindings = torch.stack([torch.cat([keys, keys.gather(1, again)], dim=1), values], dim=2)
        if c.again:
            place = self._places(draws, again).unsqueeze(2).expand_as(bindings)
            bindings = torch.empty_like(bindings).scatter(1, place, bindings)
        bound = bindings.flatten(1)
        counts = values[:, : c.pairs].scatter(1, again, values[:, c.pairs :])

        at = 2 * c.stores + self._gaps(draws)
        kinds = torch.full_like(keys, NOVEL).scatter(1, again, OVERRIDDEN)
        # Keys are in no order: if one alone is asked for, the last will do.
        asked, answer, kinds = (part[:, -at.shape[1] :] for part in (keys, counts, kinds))
        size = len(keys), c.length - bound.shape[1]
        rest = draws.integers(3, size[1]) % c.vocabulary if c.noise else keys.new_zeros(size)
        tokens = torch.cat([bound, rest], dim=1).scatter(1, at, asked)
        target = torch.full_like(tokens, _NONE).scatter(1, at, answer)
        kind = torch.full_like(tokens, FILLER)
        kind[:, : bound.shape[1]] = STORE
        return tokens, target, kind.scatter(1, at, kinds)

    def _places(self, draws: Draws, again: Tensor) -> Tensor:
        """Where each binding comes [B, stores], those of `again` [B, A] twice: the second ones are last in the list."""
        place = draws.order(5, self.config.stores)
        one, other = place.gather(1, again), place[:, self.config.pairs :]
        first = place[:, : self.config.pairs].scatter(1, again, torch.minimum(one, other))
        return torch.cat([first, torch.maximum(one, other)], dim=1)

    def _gaps(self, draws: Draws) -> Tensor:
        """Where each key is asked for [B, K], counted from the end of the bindings: no two at one place."""
        c = self.config
        if c.last:
            return torch.full((len(draws.rows), 1), c.length - 1 - 2 * c.stores, device=draws.rows.device)
        steps = torch.arange(1, c.room + 1, dtype=torch.float64, device=draws.rows.device)
        # The largest of log p + Gumbel noise are a draw without replacement.
        noise = -(-draws.uniform(2, c.room).log()).log()
        drawn = ((c.power - 1) * steps.log() + noise).topk(c.pairs, dim=1).indices
        return 2 * drawn


@dataclass(frozen=True, kw_only=True)
class CopyingConfig(TokenTaskConfig):
    """The settings of selective copying."""

    vocabulary: int = 18
    """Tokens there are: those to copy, and two more, for nothing and for "now"."""
    items: int = 16
    """Tokens to copy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("task.items", self.items, 1)
        if 2 * self.items > self.length:
            reject("task.items", self.items, f"at most half of the length, {self.length}")


class Copying(TokenTask):
    """Selective copying: a few tokens scattered among blanks, to be told in their order at the end."""

    name = "copying"
    config: CopyingConfig

    def __init__(self, config: CopyingConfig | None = None) -> None:
        super().__init__(config or CopyingConfig())

    def make(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        before = c.length - c.items
        items = 2 + draws.integers(0, c.items) % (c.vocabulary - 2)
        at = draws.order(1, before)[:, : c.items].sort(1).values
        blank = torch.zeros(len(draws.rows), c.length, dtype=torch.int64, device=draws.rows.device)
        tokens, kind, target = blank.scatter(1, at, items), blank.scatter(1, at, STORE), torch.full_like(blank, _NONE)
        tokens[:, before:] = 1
        kind[:, before:] = NOVEL
        target[:, before:] = items
        return tokens, target, kind


class Induction(TokenTask):
    """Induction: what came after a mark, asked for by the same mark at the end."""

    name = "induction"

    def __init__(self, config: TokenTaskConfig | None = None) -> None:
        super().__init__(config or TokenTaskConfig(vocabulary=16))
        check_integer("task.length", self.config.length, 3)  # mark, answer, mark

    def make(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        tokens = 1 + draws.integers(0, c.length) % (c.vocabulary - 1)
        at = draws.integers(1, 1) % (c.length - 2)
        last = torch.full_like(at, c.length - 1)
        kind = torch.zeros_like(tokens).scatter(1, at, STORE).scatter(1, at + 1, STORE).scatter(1, last, NOVEL)
        target = torch.full_like(tokens, _NONE).scatter(1, last, tokens.gather(1, at + 1))
        return tokens.scatter(1, at, 0).scatter(1, last, 0), target, kind
