"""Transfer of consolidated patterns: section 7.3, tables 2 and 3."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Column, Place, table

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="transfer/fall",
        printed="48–52%",
        unit="share",
        measures="less attention on unseen tasks after training on SRCD than after training on the task itself",
        places=(
            Place(section="abstract", words="transfer to unseen tasks with 48–52% attention reduction"),
            Place(section="1", words="transfer across tasks with 48–52% attention reduction"),
            Place(section="7.3", words="uses 48–52% less attention on unseen tasks"),
            Place(section="9", words="transfer across tasks with 48–52% attention reduction"),
            Place(section="D", words="The 48–52% attention reduction demonstrates"),
        ),
        note="Said to be without retraining; the task head is retrained.",
    ),
    *table(
        "transfer",
        "7.3",
        "Table 2",
        (
            Column(name="accuracy", unit="number", measures="accuracy on the target, as labelled"),
            Column(name="attention", unit="times", measures="attention after transfer, relative to a Transformer's"),
            Column(name="fall", unit="share", measures="less attention than after training on the target"),
        ),
        {
            "physionet": "SRCD → PhysioNet & 0.900 & 0.169× & 52%",
            "copy": "SRCD → Synthetic Copy & 0.941 & 0.171× & 51%",
            "activity": "SRCD → Activity Recognition & 0.181 & 0.182× & 48%",
            "seqboat-physionet": "SRCD → PhysioNet & 0.338 & 0.271× & 0%",
            "seqboat-copy": "SRCD → Synthetic Copy & 0.938 & 0.224× & 0%",
        },
        {
            "physionet/accuracy": "To the digit what table 5 has after training on PhysioNet, where it is called AUC.",
            "physionet/attention": "More than the 0.11 that table 5 has after training on PhysioNet itself.",
            "physionet/fall": "From scratch would then be 0.35; table 5 has 0.11, so that transfer costs 54 % more.",
            "activity/accuracy": "To the digit what table 5 has after training on the task.",
            "seqboat-physionet/accuracy": "To the digit what table 5 has after training on PhysioNet.",
        },
    ),
    *table(
        "transfer/from",
        "D",
        "Table 3",
        tuple(
            Column(name=name, unit="share", measures=f"less attention on {target} than from scratch")
            for name, target in (
                ("physionet", "PhysioNet"),
                ("mimic3", "MIMIC-III"),
                ("activity", "Activity"),
                ("copy", "Copy"),
                ("associative", "Associative"),
            )
        ),
        {
            "srcd": "SRCD & 52% & 50% & 48% & 51% & 49%",
            "physionet": "PhysioNet & 0% & 14% & 21% & 18% & 15%",
            "copy": "Copy & 11% & 8% & 12% & 0% & 24%",
        },
    ),
)
