"""The paper's source as plain text, section by section."""

import re

_SIGNS = {
    r"\%": "%",
    r"\&": "&",
    r"\times": "×",
    r"\approx": "≈",
    r"\geq": "≥",
    r"\leq": "≤",
    r"\ll": "≪",
    r"\pm": "±",
    r"\cdot": "·",
    r"\to": "→",
    r"\sim": "∼",
    r"\in": "∈",
    r"\notin": "∉",
    r"\sum": "∑",
    r"\sqrt": "√",
    r"\ldots": "…",
    r"\|": "‖",
    r"\hat{a}": "â",
    r"\bar{q}": "q̄",
    r"\ours{}": "CRAM",
    r"\ours": "CRAM",
    r"\E": "E",
    r"\ell": "ℓ",
    r"\alpha": "α",
    r"\beta": "β",
    r"\gamma": "γ",
    r"\delta": "δ",
    r"\epsilon": "ε",
    r"\eta": "η",
    r"\lambda": "λ",
    r"\omega": "ω",
    r"\phi": "φ",
    r"\pi": "π",
    r"\rho": "ρ",
    r"\sigma": "σ",
    r"\tau": "τ",
    r"\theta": "θ",
    r"\Delta": "Δ",
    r"\Omega": "Ω",
    r"\log": "log",
    r"\sin": "sin",
    r"\min": "min",
    "--": "–",
}
_DROPPED = re.compile(r"\\(?:citep|citet|ref|label|vspace|rowcolor|cmidrule|multicolumn|begin|end)\*?(?:\{[^{}]*\})+")
_FRACTION = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")


def plain(text: str) -> str:
    """LaTeX as a reader sees it, nearly: signs for commands, no marks, single spaces."""
    text = _DROPPED.sub("", text)
    while _FRACTION.search(text):
        text = _FRACTION.sub(r"\1/\2", text)
    for command in sorted(_SIGNS, key=len, reverse=True):
        ends = r"(?![A-Za-z])" if command[-1].isalpha() else ""
        text = re.sub(re.escape(command) + ends, _SIGNS[command], text)
    text = re.sub(r"\\left|\\right|\\[!{}]", "", text)
    text = re.sub(r"\\[,;]|\\quad|\\\\|\\ ", " ", text)
    text = re.sub(r"\\[A-Za-z]+", "", text).replace("&=", "=")
    text = re.sub(r"[${}]", "", text).replace("~", " ")
    return re.sub(r"\s+", " ", re.sub(r"(?<=[(\[]) +", "", text))


def sections(source: str) -> dict[str, str]:
    """The source of each section, by number: `abstract`, `1`, `7.3`, `B`, …, `reproducibility`."""
    body = source[source.index(r"\begin{abstract}") :]
    found: dict[str, str] = {}
    name, first, second, appendix = "abstract", 0, 0, False
    for part in re.split(r"(?=\\(?:sub)?section\*?\{|\\appendix)", body):
        if part.startswith(r"\appendix"):
            appendix, first = True, 0
        elif part.startswith(r"\section*"):
            name = "reproducibility"
        elif part.startswith(r"\section"):
            first, second = first + 1, 0
            name = chr(ord("A") + first - 1) if appendix else str(first)
        elif part.startswith(r"\subsection"):
            second += 1
            name = f"{first}.{second}"
        found[name] = found.get(name, "") + part
    return found


def without_layout(source: str) -> str:
    """The source without what only arranges figures: the boxes of the architecture, axes, colours, sizes."""
    source = re.sub(r"(?s)\\resizebox.*?(?=\\caption)", "", source, count=1)
    source = re.sub(r"(?s)\\begin\{axis\}\[.*?\n\]", "", source)
    return re.sub(r"\\(addplot|node|draw|fill)\[[^]]*\]", r"\\\1", source)
