"""What tokens cost, by model: the package's dated table, and over it a file of the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from autoresearch.agent.ledger import Usage
from autoresearch.core.errors import UsageError, did_you_mean
from autoresearch.core.task import read_toml

TABLE = "prices.toml"
_DATE = re.compile(r"-\d{8}$")


class Rates(NamedTuple):
    """Millionths of a dollar per token, which is dollars per million tokens; the fields are those of `Usage`."""

    input: float
    output: float
    cache_write: float
    cache_write_hour: float
    cache_read: float

    def cost_of(self, usage: Usage) -> float:
        """US dollars; rounded to their billionth part, so that sums of prices in cents stay exact to the cent."""
        return round(sum(tokens * rate for tokens, rate in zip(usage, self._of_usage(), strict=True)) / 1e6, 9)

    def _of_usage(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in Usage._fields)


class Long(NamedTuple):
    """What all tokens of a request cost whose prompt is longer than `above` tokens."""

    above: int
    rates: Rates


@dataclass(frozen=True)
class Price:
    """Of one model."""

    rates: Rates
    long: Long | None = None

    def at(self, prompt_tokens: int) -> Rates:
        """What a request with a prompt of this length costs."""
        return self.long.rates if self.long is not None and prompt_tokens > self.long.above else self.rates


@dataclass(frozen=True)
class Prices:
    """Prices by model id."""

    by_model: Mapping[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model, or of the model that an id with a date names; None where it isn't known.

        Nothing else is guessed: two models whose names differ a little may differ much in price.
        """
        return self.by_model.get(model) or self.by_model.get(_DATE.sub("", model))

    def check(self, model: str) -> None:
        """Make sure that a cap on cost can be kept with this model.

        Raises:
            UsageError: its price isn't known.
        """
        if self.of(model) is None:
            near = did_you_mean(model, self.by_model)
            raise UsageError(
                f"no price is known for the model {model!r}, so no cap on cost can be kept",
                f'{near}; or name its prices in a file: [claude] prices = "prices.toml" (docs/agents.md)',
            )

    def cost_of(self, model: str, usage: Usage) -> float:
        """US dollars of one request; 0 for a model whose price isn't known, which `check` refuses under a cap."""
        price = self.of(model)
        prompt = usage.input + usage.cache_write + usage.cache_write_hour + usage.cache_read
        return 0.0 if price is None else price.at(prompt).cost_of(usage)

    def worst_of(self, model: str, input_tokens: int, max_tokens: int) -> float:
        """US dollars that one request can cost at most: the whole prompt at its dearest, and the longest answer.

        Args:
            input_tokens: an upper bound of the prompt's length.
            max_tokens: of the answer.
        """
        price = self.of(model)
        if price is None:
            return 0.0
        rates = price.at(input_tokens)
        dearest = max(rates.input, rates.cache_write, rates.cache_write_hour, rates.cache_read)
        return round((input_tokens * dearest + max_tokens * rates.output) / 1e6, 9)


def load_prices(own: str = "", directory: Path = Path()) -> Prices:
    """The package's prices, and over them, model by model, those of a file.

    Args:
        own: its path, relative to `directory`; "" is none.

    Raises:
        UsageError: the file can't be read, or an entry isn't the prices of a model.
    """
    table = _prices(read_toml(files("autoresearch") / "agent" / TABLE), TABLE)
    if own:
        table |= _prices(read_toml(directory / own), own)
    return Prices(table)


def _prices(data: Mapping[str, Any], where: str) -> dict[str, Price]:
    return {model: _price(entry, f"{where}: [{model}]") for model, entry in data.items()}


def _price(entry: Any, where: str) -> Price:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} must be a table, received {entry!r}", _SHAPE)
    given = dict(entry)
    long = given.pop("long", None)
    if long is None:
        return Price(_rates(given, where))
    if not isinstance(long, dict) or not isinstance(above := long.get("above"), int) or above < 0:
        raise UsageError(f"{where} long must be a table with `above`, a number of tokens, received {long!r}", _SHAPE)
    return Price(_rates(given, where), Long(above, _rates({k: v for k, v in long.items() if k != "above"}, where)))


def _rates(entry: Mapping[str, Any], where: str) -> Rates:
    for key in entry:
        if key not in Rates._fields:
            raise UsageError(f"{where} has no key {key!r}", did_you_mean(key, Rates._fields))
    for key in Rates._fields:
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UsageError(f"{where} {key} must be dollars per million tokens, received {value!r}", _SHAPE)
    return Rates(**{key: float(entry[key]) for key in Rates._fields})


_SHAPE = "for example: input = 2.0, output = 10.0, cache_write = 2.5, cache_write_hour = 4.0, cache_read = 0.1"
