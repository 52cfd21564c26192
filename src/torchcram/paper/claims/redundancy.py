"""Redundancy of attention in pretrained models: section 2, tables 6 and 7."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Column, Place, table

_STEPS = ("10K", "50K", "100K", "300K")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="redundancy/share",
        printed="88%",
        unit="share",
        measures="attention operations of GPT-2 models that retrieve what a linear probe of the hidden state predicts",
        places=(
            Place(section="abstract", words="88% of attention operations retrieve information already predictable"),
            Place(section="1", words="88% of attention operations retrieve information already predictable"),
            Place(section="1", words="88% of attention in pretrained LLMs retrieves predictable information"),
            Place(section="9", words="88% of attention in pretrained LLMs computes predictable information"),
            Place(section="G", words="confirming that 88% of attention is redundant"),
        ),
        note="The mean of the two models' R, 0.84 and 0.92: one minus a relative error, not a share of operations.",
    ),
    Claim(
        id="redundancy/definition",
        printed="R^(ℓ)_t = 1 - ‖a_t^(ℓ) - â_t^(ℓ)‖_2/‖a_t^(ℓ)‖_2",
        unit="formula",
        measures="redundancy R of a token's attention output, given a linear probe's prediction of it",
        places=(
            Place(section="2", item="eq. 1", words="R^(ℓ)_t = 1 - ‖a_t^(ℓ) - â_t^(ℓ)‖_2/‖a_t^(ℓ)‖_2"),
            Place(section="2", words="When R^(ℓ)_t ≈ 1, attention retrieves information already present"),
        ),
        note="Neither squared nor about the mean: a probe that knows nothing but the mean can score high.",
    ),
    Claim(
        id="redundancy/parameters",
        printed="124M, 355M",
        unit="parameters",
        measures="the two models that were probed, GPT-2 and GPT-2 Medium",
        places=(
            Place(section="2", words="GPT-2 (124M) and GPT-2 Medium (355M)"),
            Place(section="G", item="Table 7", words="(GPT-2 124M trained from scratch)"),
        ),
    ),
    Claim(
        id="redundancy/probe-tokens",
        printed="10M",
        unit="tokens",
        measures="OpenWebText that the probes were trained on",
        places=(
            Place(section="2", words="using 10M tokens from OpenWebText"),
            Place(section="A", words="10M tokens from OpenWebText for training"),
        ),
    ),
    Claim(
        id="redundancy/evaluation-tokens",
        printed="1M",
        unit="tokens",
        measures="OpenWebText that redundancy was evaluated on",
        places=(Place(section="A", words="1M for evaluation"),),
    ),
    Claim(
        id="redundancy/probe-steps",
        printed="10K",
        unit="steps",
        measures="training of a linear probe",
        places=(Place(section="A", words="Linear probes trained for 10K steps"),),
    ),
    Claim(
        id="redundancy/probe-rate",
        printed="1e-3",
        unit="number",
        measures="learning rate of a linear probe",
        places=(Place(section="A", words="with LR 1e-3 on frozen model activations"),),
    ),
    Claim(
        id="redundancy/overall-in-text",
        printed="0.84, 0.92",
        unit="number",
        measures="overall R of GPT-2 and of GPT-2 Medium",
        places=(Place(section="2", words="Overall redundancy is 0.84 for GPT-2 and 0.92 for GPT-2 Medium"),),
        note="The means of table 6's three groups of layers, 0.843 and 0.920; but see the heads.",
    ),
    Claim(
        id="redundancy/middle-in-text",
        printed="0.97–0.99",
        unit="number",
        measures="R of the middle layers",
        places=(
            Place(section="2", words="middle layers reaching 0.97–0.99"),
            Place(section="G", words="Middle layers are the most redundant (0.97–0.99)"),
        ),
    ),
    Claim(
        id="redundancy/rise-in-text",
        printed="0.52, 0.72",
        unit="number",
        measures="R while GPT-2 is trained from scratch, at 10K steps and at 300K",
        places=(Place(section="2", words="from 0.52 at 10K steps to 0.72 at 300K"),),
        note="The same model as published is said to have 0.84.",
    ),
    Claim(
        id="redundancy/heads-high",
        printed="34%",
        unit="share",
        measures="heads with R > 0.8",
        places=(Place(section="2", words="34% of heads are highly redundant (R > 0.8)"),),
        note=(
            "If so, the mean R of heads is below 0.34·1 + 0.41·0.8 + 0.25·0.5 = 0.79; "
            "yet overall redundancy is put at 0.84 and 0.92."
        ),
    ),
    Claim(
        id="redundancy/heads-middle",
        printed="41%",
        unit="share",
        measures="heads with 0.5 < R < 0.8",
        places=(Place(section="2", words="41% are partially predictable (0.5 < R < 0.8)"),),
    ),
    Claim(
        id="redundancy/heads-low",
        printed="25%",
        unit="share",
        measures="heads with R < 0.5, said to retrieve something genuinely novel",
        places=(Place(section="2", words="25% perform genuinely novel retrieval (R < 0.5)"),),
    ),
    *table(
        "redundancy",
        "G",
        "Table 6",
        (
            Column(name="early", unit="number", measures="R of early layers"),
            Column(name="middle", unit="number", measures="R of middle layers"),
            Column(name="late", unit="number", measures="R of late layers"),
            Column(name="overall", unit="number", measures="R of all layers"),
        ),
        {
            "gpt2": "GPT-2 (124M) & 0.77 ± 0.04 & 0.97 ± 0.02 & 0.79 ± 0.05 & 0.84",
            "gpt2-medium": "GPT-2 (355M) & 0.87 ± 0.05 & 0.99 ± 0.01 & 0.90 ± 0.04 & 0.92",
        },
    ),
    *table(
        "redundancy",
        "G",
        "Table 7",
        tuple(Column(name=step, unit="number", measures=f"R at {step} steps") for step in _STEPS),
        {"training": "Redundancy R & 0.52 & 0.67 & 0.71 & 0.72"},
        {"training/300K": "The same model as published is said to have 0.84 (table 6)."},
    ),
    *table(
        "redundancy",
        "G",
        "Table 7",
        tuple(Column(name=step, unit="nats", measures=f"loss at {step} steps") for step in _STEPS),
        {"validation-loss": "Validation Loss & 4.21 & 3.54 & 3.31 & 3.18"},
    ),
    Claim(
        id="redundancy/training-steps",
        printed="10K, 50K, 100K, 300K",
        unit="steps",
        measures="when redundancy was measured while GPT-2 was trained from scratch",
        places=(Place(section="G", item="Table 7", words="Training Step & 10K & 50K & 100K & 300K (final)"),),
    ),
)
