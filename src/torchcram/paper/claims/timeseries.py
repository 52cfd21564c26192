"""Irregular time series: section 7.6 and table 5."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Column, Place, table

_SAME = (
    "The same for different models to three digits, as a constant answer's accuracy would be; "
    "section 7.6 calls it accuracy and AUC in one sentence."
)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="timeseries/physionet-in-text",
        printed="0.900",
        unit="AUC",
        measures="PhysioNet, CRAM and a Transformer alike",
        places=(Place(section="7.6", words="CRAM matches transformer accuracy on PhysioNet (0.900 AUC)"),),
        note=_SAME,
    ),
    Claim(
        id="timeseries/mimic3-in-text",
        printed="0.783",
        unit="AUC",
        measures="MIMIC-III, CRAM and a Transformer alike",
        places=(Place(section="7.6", words="MIMIC-III (0.783 AUC)"),),
        note=_SAME,
    ),
    Claim(
        id="timeseries/attention-in-text",
        printed="11%",
        unit="share",
        measures="attention of CRAM on PhysioNet and MIMIC-III, of a Transformer's",
        places=(
            Place(section="7.6", words="using only 11% of the attention compute"),
            Place(section="F", words="matches the full transformer at 11% attention compute"),
        ),
    ),
    Claim(
        id="timeseries/fall",
        printed="89%",
        unit="share",
        measures="less attention on PhysioNet and MIMIC-III than a Transformer",
        places=(Place(section="7.6", words="an 89% reduction"),),
    ),
    Claim(
        id="timeseries/activity-in-text",
        printed="0.181, 0.386",
        unit="share",
        measures="accuracy of CRAM and of SeqBoat on Activity Recognition",
        places=(Place(section="7.6", words="lower accuracy (0.181 vs. 0.386 for SeqBoat)"),),
        note="All models are between 0.18 and 0.39: next to nothing is learned.",
    ),
    *table(
        "timeseries",
        "F",
        "Table 5",
        (
            Column(name="physionet", unit="AUC", measures="PhysioNet"),
            Column(name="mimic3", unit="AUC", measures="MIMIC-III"),
            Column(name="activity", unit="share", measures="accuracy on Activity Recognition"),
            Column(name="attention", unit="times", measures="attention operations, relative to a Transformer's"),
        ),
        {
            "transformer": "Transformer & 0.900 & 0.783 & 0.319 & 1.00×",
            "mamba": "Mamba & 0.900 & 0.783 & 0.357 & 0×",
            "seqboat": "SeqBoat & 0.338 & 0.783 & 0.386 & 0.27×",
            "cram": "CRAM & 0.900 & 0.783 & 0.181 & 0.11×",
        },
        {
            "physionet": _SAME,
            "mimic3": _SAME,
            "seqboat/physionet": "Worse than a guess, which has an AUC of 0.5.",
            "cram/attention": "Table 2 has 0.169 on PhysioNet after transfer, and calls it 52 % less.",
        },
    ),
)
