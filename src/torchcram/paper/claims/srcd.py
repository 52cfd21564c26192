"""SRCD and its main results: sections 6 and 7.1, table 1, and the ablations of 7.5 and table 4."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Column, Place, table

_ATTENTION = Column(name="attention", unit="times", measures="attention operations, relative to a Transformer's")
_RATIO = Column(name="ratio", unit="number", measures="consolidation ratio, attention at the end ÷ at the start")
_ACCURACY = Column(name="accuracy", unit="share", measures="retrieval accuracy")

TASK: tuple[Claim, ...] = (
    Claim(
        id="srcd/query-share",
        printed="5%",
        unit="share",
        measures="positions that require retrieval",
        places=(
            Place(section="6", words="only 5% of positions need retrieval"),
            Place(section="6", words="5% of positions require content-based retrieval from earlier keys"),
            Place(section="A", words="Query fraction: 5%"),
        ),
    ),
    Claim(
        id="srcd/recurring-share",
        printed="70%",
        unit="share",
        measures="key-query bindings from the fixed set",
        places=(
            Place(section="6", words="70% of key-query bindings are drawn from a fixed set of 100 patterns"),
            Place(section="A", words="Recurring fraction: 70%"),
        ),
    ),
    Claim(
        id="srcd/patterns",
        printed="100",
        unit="number",
        measures="recurring patterns",
        places=(
            Place(section="6", words="from a fixed set of 100 patterns"),
            Place(section="A", words="Recurring pattern count: 100"),
        ),
    ),
    Claim(
        id="srcd/length",
        printed="2048",
        unit="number",
        measures="positions of a sequence",
        places=(
            Place(section="6", words="Sequences have length N = 2048"),
            Place(section="A", words="Sequence length: 2048"),
        ),
    ),
    Claim(
        id="srcd/dynamics",
        printed="0.95",
        unit="number",
        measures="coefficient of the dynamics, v_t = 0.95 v_{t-1} + β sin(ω Δτ_t) + ε_t",
        places=(
            Place(section="6", words="v_t = 0.95 v_t-1 + β sin(ω Δτ_t) + ε_t"),
            Place(section="A", words="Dynamics: AR(1) with α=0.95"),
        ),
        note="β, ω and the variance of ε are not given; so no error can be compared with its floor.",
    ),
    Claim(
        id="srcd/gaps",
        printed="1.5",
        unit="number",
        measures="shape α of the Pareto distribution of time gaps",
        places=(
            Place(section="6", words="Δτ_t ∼ Pareto(1.5)"),
            Place(section="A", words="Time gaps: Pareto(α=1.5)"),
        ),
    ),
    Claim(
        id="srcd/gap-limits",
        printed="[0.1, 1000]",
        unit="number",
        measures="what time gaps are clipped to",
        places=(Place(section="A", words="clipped to [0.1, 1000]"),),
        note="A Pareto distribution from 1 on would never be below 0.1: the Lomax form must be meant.",
    ),
)

RESULTS: tuple[Claim, ...] = (
    Claim(
        id="srcd/accuracy",
        printed="100%",
        unit="share",
        measures="retrieval accuracy of CRAM on SRCD",
        places=(
            Place(section="abstract", words="100% retrieval accuracy at 1.6% attention compute"),
            Place(section="7.1", words="CRAM is the only method to achieve 100% retrieval accuracy"),
            Place(section="9", words="attaining 100% retrieval accuracy compared to 68% for baselines"),
        ),
        note="Table 1 gives the model without consolidation 100 %, too.",
    ),
    Claim(
        id="srcd/reads",
        printed="1.6%",
        unit="share",
        measures="attention of CRAM on SRCD at the end of training",
        places=(
            Place(section="abstract", words="at 1.6% attention compute"),
            Place(section="7.1", words="Its final attention usage of 1.6%"),
            Place(section="9", words="reaching 1.6% attention"),
        ),
        note="Figure 3 ends the same training at 1.0 %.",
    ),
    Claim(
        id="srcd/baselines",
        printed="68%",
        unit="share",
        measures="retrieval accuracy of the baselines on SRCD",
        places=(
            Place(section="abstract", words="(vs. 68% for baselines)"),
            Place(section="7.1", words="static methods (SeqBoat, Transformer, Mamba) plateau at 68%"),
            Place(section="9", words="compared to 68% for baselines"),
        ),
        note=(
            "Three different models to the digit, at about the share of recurring queries, 70 %: "
            "what a model has that knows the table by heart and retrieves nothing."
        ),
    ),
    Claim(
        id="srcd/jamba-in-text",
        printed="0%",
        unit="share",
        measures="retrieval accuracy of Jamba on SRCD",
        places=(
            Place(section="7.1", words="Jamba's fixed 1:7 ratio fails entirely on the retrieval task (0% accuracy)"),
        ),
        note="Less than a guess would have, and than the 68 % of Mamba, which it contains.",
    ),
    Claim(
        id="srcd/ratio-in-text",
        printed="0.019",
        unit="number",
        measures="consolidation ratio of CRAM",
        places=(Place(section="7.1", words="the consolidation ratio of 0.019 indicates a 37.8× reduction"),),
        note="1 ÷ 0.019 = 52.6, not 37.8; table 4 prints 0.04 for the same model.",
    ),
    Claim(
        id="srcd/ratio-below-one",
        printed="< 1",
        unit="number",
        measures="consolidation ratio that shows attention to decrease",
        places=(Place(section="7.1", item="Table 1", words="Consolidation Ratio < 1 indicates decreasing attention"),),
        note="Said to be unique to CRAM; SeqBoat is printed with 0.98.",
    ),
    Claim(
        id="srcd/ablation-fall",
        printed="10×",
        unit="times",
        measures="attention without consolidation ÷ with it",
        places=(
            Place(section="7.1", words="the consolidation mechanism alone accounts for a 10× attention reduction"),
        ),
        note="16.7 % ÷ 1.6 % = 10.4; the same mechanism is credited with 37.8 times elsewhere.",
    ),
    Claim(
        id="srcd/seqboat-usage",
        printed="20–40%",
        unit="share",
        measures="attention that SeqBoat is said to use in its own paper",
        places=(Place(section="3", words="achieving 20–40% attention usage"),),
    ),
    Claim(
        id="srcd/jamba-ratio",
        printed="7:1",
        unit="words",
        measures="Mamba layers to attention layers in Jamba",
        places=(Place(section="3", words="interleaves Mamba and attention at a fixed 7:1 ratio"),),
    ),
    *table(
        "srcd",
        "7.1",
        "Table 1",
        (
            Column(name="dynamics-mse", unit="number", measures="squared error of the dynamics"),
            _ACCURACY,
            _ATTENTION,
            _RATIO,
            Column(name="bound", unit="share", measures="least attention in theory"),
        ),
        {
            "transformer": "Transformer & 0.589 & 68.0% & 1.00× & 1.00 & –",
            "mamba": "Mamba & 0.620 & 68.0% & 0× & – & –",
            "jamba": "Jamba (1:7) & 0.461 & 0.0% & 0.125× & 1.00 & ≥0.05",
            "seqboat": "SeqBoat & 0.649 & 68.0% & 0.23× & 0.98 & ≥0.05",
            "cram": "CRAM (ours) & 1.211 & 100.0% & 0.016× & 0.019 & 0.015",
            "cram-without-consolidation": "- w/o consolidation & 1.198 & 100.0% & 0.167× & 0.95 & ≥0.05",
        },
        {
            "cram/dynamics-mse": "The worst of all, about twice that of the baselines; no loss of quality is reported.",
            "cram-without-consolidation/dynamics-mse": "About twice that of the baselines, too.",
            "cram/ratio": "52.6 times less, not 37.8; table 4 prints 0.04 for the same model, 25 times less.",
            "cram-without-consolidation/ratio": "Table 4 prints 0.05 for a model without the consolidation loss.",
            "jamba/accuracy": "Below a guess, and below Mamba's 68 %.",
            "transformer/accuracy": "Equal to Mamba's and SeqBoat's to the digit, near the recurring share of 70 %.",
        },
    ),
)

ABLATIONS: tuple[Claim, ...] = (
    *table(
        "ablation",
        "E",
        "Table 4",
        (
            _ACCURACY,
            _ATTENTION,
            _RATIO,
            Column(name="gamma", unit="words", measures="whether γ is near human values"),
        ),
        {
            "full": "CRAM (full) & 100.0% & 0.016× & 0.04 & Yes (γ = 0.43)",
            "no-semantic": "No semantic memory & 100.0% & 0.167× & 0.05 & No",
            "no-loss": "No consolidation loss & 100.0% & 0.167× & 0.05 & No (γ = 0.18)",
            "no-quality": "No q_t in router & 100.0% & 0.167× & 0.05 & Partial (γ = 0.29)",
            "fast": "Semantic memory 10× LR & 100.0% & 0.167× & 0.05 & No (γ = 0.71, too fast)",
        },
        {
            "full/ratio": "25 times less; table 1 prints 0.019 for the same model, the text 37.8 times.",
            "ratio": "Attention that ends at 16.7 % of the positions would have begun at 334 % of them.",
            "attention": "Four different ablations, equal to the digit.",
            "full/attention": "",
            "fast/gamma": "Said to consolidate too fast, with ten times the attention.",
        },
    ),
    Claim(
        id="ablation/plateau",
        printed="16.7%",
        unit="share",
        measures="attention at which every ablated variant ends",
        places=(
            Place(section="7.5", words="all ablated variants plateau at 16.7% attention usage"),
            Place(section="E", words="causes the system to plateau at 16.7% attention usage"),
        ),
        note="One sixth, for four different ablations; also where figure 3 begins and where figure 2 is at step 2900.",
    ),
    Claim(
        id="ablation/fast-rate",
        printed="10×",
        unit="times",
        measures="learning rate of semantic memory in one ablation; the recipe's is a tenth of the main one",
        places=(
            Place(section="7.5", words="increasing the semantic memory learning rate by 10×"),
            Place(section="E", words="The 10× learning rate variant is particularly instructive"),
        ),
    ),
    Claim(
        id="ablation/fast-gamma",
        printed="0.71",
        unit="number",
        measures="γ with ten times the learning rate of semantic memory",
        places=(
            Place(section="7.5", words="excessively fast consolidation (γ = 0.71)"),
            Place(section="E", words="it consolidates too quickly (γ = 0.71)"),
        ),
        note="Faster consolidation that leaves attention at 16.7 %, as much as without semantic memory.",
    ),
)

CLAIMS: tuple[Claim, ...] = (*TASK, *RESULTS, *ABLATIONS)
