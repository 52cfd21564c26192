"""What all pages are made of: a document that needs no other file, and its sections."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from torchcram import results
from torchcram.report import chart, colours


def document(title: str, body: Iterable[str], *, style: str = "", scripts: Iterable[str] = ()) -> str:
    """One self-contained HTML page; empty parts of its body are left out. `scripts` run after the one of all pages."""
    folder = files("torchcram.report")
    rules = [colours.page_rules(), chart.STYLE, (folder / "page.css").read_text(encoding="utf-8"), style]
    version = results.versions().get("torchcram", "(not installed)")
    script = "\n".join([(folder / "page.js").read_text(encoding="utf-8"), *scripts])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{chr(10).join(filter(None, rules))}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + f"\n<footer>Written by torchcram {escape(version)}.</footer>\n<script>\n{script}</script>\n"
        + "</body>\n</html>\n"
    )


def section(title: str, note: str, content: str, name: str = "") -> str:
    """A part of a page; what it says of itself is escaped, its content is not. `name`: for links to it."""
    place = f' id="{escape(name)}"' if name else ""
    return f'<section{place}><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{content}</section>'
