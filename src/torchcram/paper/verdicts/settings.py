"""What the paper prints about how something was done: there is nothing in it to be confirmed."""

from __future__ import annotations

from collections.abc import Mapping

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.verdict import Results, Rule, Verdict

_PAPER = "torchcram train srcd --preset paper --schedule paper --out RUN"
_PROBE = "torchcram probe gpt2 --text FILE --train-tokens 10000000 --eval-tokens 1000000 --steps 10000 --out RUN"

_OTHERS: Mapping[str, tuple[str, str]] = {
    "redundancy/definition": ("a definition, `printed` here; beside it stand measures about the mean", _PROBE),
    "redundancy/parameters": ("which models were probed", _PROBE),
    "redundancy/probe-tokens": ("how the probes were trained", _PROBE),
    "redundancy/evaluation-tokens": ("how the probes were judged", _PROBE),
    "redundancy/probe-steps": ("how the probes were trained", _PROBE),
    "redundancy/probe-rate": ("how the probes were trained; here also by ridge regression, which needs none", _PROBE),
    "redundancy/training-steps": ("when it was measured", "torchcram probe RUN --at 10000,50000 --text FILE --out OUT"),
    "srcd/jamba-ratio": (
        "how Jamba is built; here attention in one layer of eight, or of all if there are fewer",
        "torchcram train srcd --preset paper --model jamba --out RUN",
    ),
    "ablation/fast-rate": (
        "how the ablation is defined",
        "torchcram train srcd --preset medium --set optimizer.semantic=10 --out RUN",
    ),
    "recipe/seeds": ("here each row of a result file names its seed", "torchcram sweep srcd --vary seed=0,1,2,3,4"),
}


def _setting(claim: Claim, results: Results) -> Verdict:
    why, command = _OTHERS.get(claim.id, ("`--preset paper --schedule paper` has it", _PAPER))
    return Verdict(status="a setting, no result", why=why, command=command)


_TASK = ("query-share", "recurring-share", "patterns", "length", "dynamics", "gaps", "gap-limits")

RULES: Mapping[str, Rule] = dict.fromkeys(
    [*_OTHERS, *(f"srcd/{name}" for name in _TASK), *(name for name in CLAIMS if name.startswith("recipe/"))], _setting
)
