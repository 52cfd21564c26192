"""Configs that check themselves: frozen dataclasses with strict conversion from plain data, and helpful errors."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


def reject(name: str, value: object, allowed: str) -> typing.NoReturn:
    raise ValueError(f"{name} = {value!r} is not possible; allowed: {allowed}")


def check_integer(name: str, value: object, minimum: int, maximum: int | None = None) -> None:
    allowed = f"an integer of at least {minimum}" + (f" and at most {maximum}" if maximum is not None else "")
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        reject(name, value, allowed)
    if maximum is not None and value > maximum:
        reject(name, value, allowed)


def check_number(name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    allowed = f"a finite number {'above' if open_low else 'of at least'} {low:g}"
    if high < math.inf:
        allowed += f" and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        reject(name, value, allowed)
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        reject(name, value, allowed)
    if value < low or value > high or (open_low and value == low):
        reject(name, value, allowed)


def check_choice(name: str, value: object, literal: object) -> None:
    options = typing.get_args(literal)
    if value not in options:
        reject(name, value, " or ".join(repr(option) for option in options))


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        reject(name, value, "True or False")


def check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.isidentifier():
        reject(name, value, "a name of letters, digits and underscores, not starting with a digit")


@dataclass(frozen=True, kw_only=True)
class StrictConfig:
    """Strict conversion to and from plain data, shared by every part."""

    def to_dict(self) -> dict[str, Any]:
        """This config as JSON-ready data."""
        data: dict[str, Any] = dataclasses.asdict(self)
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; unknown keys are errors, absent keys take their defaults."""
        return cls._parse(data, where="")

    def override(self, changes: Mapping[str, Any]) -> Self:
        """A copy with some fields changed by dotted name: `config.override({"episodic.slots": 64})`."""
        data = self.to_dict()
        for path, value in changes.items():
            *parents, leaf = path.split(".")
            part: Any = data
            for depth, name in enumerate([*parents, leaf]):
                if not isinstance(part, dict) or name not in part:
                    where = f"{'.'.join(parents[:depth])} has" if depth else "top-level"
                    fields = ", ".join(part) if isinstance(part, dict) else "none"
                    raise ValueError(f"the config has no field {path!r}; {where} fields: {fields}")
                part = part[name] if depth < len(parents) else part
            part[leaf] = value
        return type(self).from_dict(data)

    def to_json(self) -> str:
        """This config as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the config is not valid JSON: {error}") from error
        return cls.from_dict(data)

    @classmethod
    def _parse(cls, data: object, where: str) -> Self:
        label = where.rstrip(".") or cls.__name__
        if not isinstance(data, Mapping):
            reject(label, data, "a mapping of field names to values")
        hints = typing.get_type_hints(cls)
        unknown = sorted(set(data) - set(hints))
        if unknown:
            raise ValueError(f"{label} has no field {', '.join(repr(k) for k in unknown)}; fields: {', '.join(hints)}")
        values = {key: _decode(hints[key], value, f"{where}{key}") for key, value in data.items()}
        missing = [
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ValueError(f"{label} needs {', '.join(repr(k) for k in missing)}")
        return cls(**values)


def _decode(hint: Any, value: object, where: str) -> Any:
    """Turn JSON data into the type of a field: nested configs and tuples; all else is left to validation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [a for a in args if a is not type(None)]
        return _decode(next((a for a in options if _could_be(a, value)), options[0]), value, where)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            reject(where, value, "a list")
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, StrictConfig):
        return value if isinstance(value, hint) else hint._parse(value, where=f"{where}.")
    return value


def _could_be(hint: Any, value: object) -> bool:
    """Whether data has no keys that a config would not have; of several configs, the first such is meant."""
    if not (isinstance(hint, type) and issubclass(hint, StrictConfig)):
        return True
    if not isinstance(value, Mapping):
        return isinstance(value, hint)
    return set(value) <= set(typing.get_type_hints(hint))
