"""Fixed colours for kinds of tokens and for actions, told apart by colour-blind eyes too, on light and on dark."""

from __future__ import annotations

from collections.abc import Mapping

ACTIONS = ("nothing more", "episodic read", "semantic recall")
"""By the digit that stands for each."""

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1d2430",
    "quiet": "#5d6673",
    "faint": "#e3e6ea",
    "band": "#f3f5f7",
    "dynamics": "#7d8794",
    "store": "#a2449b",
    "recurring": "#c88a00",
    "novel": "#cc3d0c",
    "other0": "#2e6dad",
    "other1": "#27855e",
    "other2": "#6b4fa0",
    "other3": "#8a6d3b",
    "action0": "#e3e6ea",
    "action1": "#0a63ad",
    "action2": "#4dbd9a",
    "warn": "#a52a00",
    "warn-paper": "#fff1ea",
}
DARK: Mapping[str, str] = {
    "paper": "#14181f",
    "ink": "#e8ebf0",
    "quiet": "#9ba5b3",
    "faint": "#2f3743",
    "band": "#1b212a",
    "dynamics": "#8c96a4",
    "store": "#d47fce",
    "recurring": "#eab32e",
    "novel": "#ff7a45",
    "other0": "#6aa9e6",
    "other1": "#5cc39a",
    "other2": "#a98fe0",
    "other3": "#c8a76c",
    "action0": "#2f3743",
    "action1": "#4ea3ee",
    "action2": "#1f8a6a",
    "warn": "#ffb08a",
    "warn-paper": "#3a1f14",
}
_KINDS = ("dynamics", "store", "recurring", "novel")


def of_kind(kind: str, index: int) -> str:
    """The colour's name for a kind: SRCD's have their own; those of other tasks go by their place."""
    return kind if kind in _KINDS else f"other{index % 4}"


def drawing_rules(colours: Mapping[str, str], within: str = "") -> str:
    """CSS that gives SVG drawings these colours, written out: not every reader of SVG knows variables.

    within: What the drawings must be inside of, ending in a space.
    """
    rules = [f"{within}.line.{name}{{stroke:{c}}}{within}.fill.{name}{{fill:{c}}}" for name, c in colours.items()]
    return "\n".join([*rules, f"{within}.halo{{stroke:{colours['paper']}}}"])


def page_rules() -> str:
    """CSS for a page: light; dark on a screen that asks for it or whose reader chose it. Paper is always light."""

    def both(colours: Mapping[str, str], root: str = "") -> str:
        variables = "".join(f"--{name}:{c};" for name, c in colours.items())
        return f"{root or ':root'}{{{variables}}}\n{drawing_rules(colours, f'{root} ' if root else '')}"

    asked, chosen = ':root:not([data-theme="light"])', ':root[data-theme="dark"]'
    return (
        f"{both(LIGHT)}\n@media screen and (prefers-color-scheme: dark){{\n{both(DARK, asked)}\n}}\n"
        f"@media screen{{\n{both(DARK, chosen)}\n}}"
    )
