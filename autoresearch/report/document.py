"""One self-contained HTML page: no network, no files beside it, nothing of the data ever read as markup or as a script.

    title, body (markup), figures, data    →    document(...)    →    text of the page

A page holds its data as JSON, and draws its figures by plotly.js, which it carries compressed. Its
Content-Security-Policy lets exactly the scripts of `assets/` run, told by their hashes, and nothing be fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from autoresearch.core.errors import AutoresearchError
from autoresearch.core.extras import install_hint

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

INSTALL_HINT = install_hint("report")

NEEDED = ("jinja2", "plotly")


class Figure(NamedTuple):
    """What plotly.js draws, see https://plotly.com/javascript/reference.

    A text that is `var(--NAME)` anywhere in it becomes that colour of page.css, in the theme that is on.
    """

    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    """What differs from the layout that page.js gives all figures."""


def missing(packages: Iterable[str] = NEEDED) -> list[str]:
    """Those of the packages that aren't installed."""
    return [name for name in packages if find_spec(name) is None]


def render(template: str, **values: Any) -> Markup:
    """Fill a template of `assets/`; every value is escaped that isn't Markup itself.

    Raises:
        AutoresearchError: the extra `report` isn't installed.
    """
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(**values))


def document(
    title: str,
    body: Markup,
    figures: Mapping[str, Figure] | None = None,
    data: Mapping[str, Any] | None = None,
    details: Iterable[Any] = (),
    scripts: Iterable[str] = (),
) -> str:
    """The page.

    Args:
        title: of the window.
        body: made by `render`. `<div class="figure" data-figure="NAME"></div>` is where a figure is drawn.
        figures: by name.
        data: JSON that scripts read by `page.data`.
        details: JSON of which scripts read one at a time, by `page.detail(i)`: carried compressed.
        scripts: files of `assets/` to run after page.js; they may draw figures too, by `page.show`.

    Raises:
        AutoresearchError: the extra `report` isn't installed.
    """
    scripts = list(scripts)
    code = [_asset(name) for name in ("page.js", *scripts)]
    plotly, plotly_hash = _plotly() if figures or scripts else ("", "")
    hashes = [_source_hash(text) for text in code] + [plotly_hash] * bool(plotly)
    drawn = {name: figure._asdict() for name, figure in (figures or {}).items()}
    made = render(
        "page.html",
        title=title,
        body=body,
        policy=f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
        f"style-src 'unsafe-inline'; script-src {' '.join(hashes)}",
        style=_markup(_asset("page.css")),
        data=_markup(json_in_html({"figures": drawn, **(data or {})})),
        details=_pack("\n".join(json.dumps(one, separators=(",", ":")) for one in details).encode(), level=3),
        plotly=plotly,
        code=[_markup(text) for text in code],
    )
    return str(made)


def json_in_html(value: Any) -> str:
    """JSON that ends no script element and opens no comment in one, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate, e.g. of an undecodable file name, can't be written as UTF-8.
    return text.encode("utf-8", "backslashreplace").decode()


def _markup(trusted: str) -> Markup:
    """A text that is no data: it is ours, or was made safe."""
    from markupsafe import Markup

    return Markup(trusted)


@cache
def _environment() -> Environment:
    if absent := missing():
        raise AutoresearchError(f"the page needs {' and '.join(absent)}", INSTALL_HINT)
    from jinja2 import DictLoader, Environment, StrictUndefined

    folder = resources.files(__package__) / "assets"
    templates = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".html")}
    return Environment(
        loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js packed, 2 of 5 MB, and the hash of its source."""
    source = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return _pack(source, level=6), _source_hash(source.decode())


def _pack(content: bytes, level: int) -> str:
    return base64.b64encode(gzip.compress(content, level, mtime=0)).decode()


def _source_hash(script: str) -> str:
    """What a Content-Security-Policy calls a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
