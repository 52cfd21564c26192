"""A small made-up recording of a run, as `torchcram explore` writes it."""

from __future__ import annotations

from typing import Any


def layer(step: int, number: int, actions: str, *, reads: str = "", evicted: str = "", phase: str = "settle"):
    """A layer of eight positions."""
    return {
        "what": "layer",
        "layer": number,
        "actions": actions,
        "hits": "0" * 8,
        "quality": " ".join(["0.90"] * 7 + ["0.10"]),
        "reads": reads,
        "evicted": evicted,
        "step": step,
        "phase": phase,
        "released": phase != "acquire",
    }


def recording() -> dict[str, Any]:
    """Eight positions, two layers with two slots, two moments: all read, then only the query."""
    sequence = {
        "what": "sequence",
        "kinds": "dynamics,store,recurring,novel",
        "kind": "01000003",
        "targets": "-100 -100 -100 -100 -100 -100 -100 4",
        "gaps": " ".join(["0.50"] * 8),
        "input key": "0 7 0 0 0 0 0 7",
        "input value": "0 5 0 0 0 0 0 0",
        "slots": 2,
        "threshold": 0.7,
    }
    # The buffer holds positions 0 and 1; whatever comes later is not kept.
    evicted = " ".join(f"{t}:{t}" for t in range(2, 8))
    everywhere = "0: 1:0=1.00 " + " ".join(f"{t}:0=0.50,1=0.50" for t in range(2, 8))
    rows = [
        sequence,
        layer(10, 0, "11111111", reads=everywhere, evicted=evicted, phase="acquire"),
        layer(10, 1, "11111111", reads=everywhere, evicted=evicted, phase="acquire"),
        {"what": "answer", "answers": "0 0 0 0 0 0 0 3", "step": 10, "phase": "acquire", "released": False},
        layer(20, 0, "22222222", evicted=evicted),
        layer(20, 1, "00000001", reads="7:1=0.97,0=0.03", evicted=evicted),
        {"what": "answer", "answers": "0 0 0 0 0 0 0 4", "step": 20, "phase": "settle", "released": True},
    ]
    rows += [
        {
            "what": "evaluation",
            "step": step,
            "phase": phase,
            "reads": reads,
            "layer_reads": reads / 2,
            "mean_quality": quality,
            "histogram": " ".join(["1"] * 20),
        }
        for step, phase, reads, quality in (
            (5, "acquire", 1.0, 0.2),
            (10, "acquire", 1.0, 0.5),
            (20, "settle", 0.1, 0.9),
        )
    ]
    rows += [{"what": "practice", "k": k, "asked": 10, "read": read} for k, read in ((1, 10), (10, 8), (100, 1))]
    return {"name": "explored", "command": "torchcram explore <RUN>", "commit": "abc", "machine": "one", "rows": rows}
