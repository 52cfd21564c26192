"""The fall of attention over training: figures 2 and 3, section 7.2, appendix C."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Curve, Place

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="phase/fall",
        printed="37.8×",
        unit="times",
        measures="attention at the start of training ÷ at its end",
        places=(
            Place(section="abstract", words="achieving a 37.8× reduction"),
            Place(section="1", item="Figure 1", words="producing a 37.8× reduction in attention compute"),
            Place(section="1", words="attention demand drops by 37.8× as consolidation progresses"),
            Place(section="1", item="Figure 2", words="(axis cs:900,20) 37.8×"),
            Place(section="7.1", words="indicates a 37.8× reduction in attention over training"),
            Place(section="7.2", words="the transition at step 3100 producing a 37.8× reduction in attention usage"),
            Place(section="9", words="CRAM achieves a 37.8× attention reduction"),
            Place(section="E", words="necessary for the full 37.8× reduction"),
        ),
        note=(
            "37.8 is where figure 2 begins, in percent: 37.8 % to 1.6 % is 23.6 times. Other ratios printed: figure 3, "
            "16.7 to 1.0 (16.7 times); table 1, 1 ÷ 0.019 (52.6); table 4, 1 ÷ 0.04 (25); the ablation, 10."
        ),
    ),
    Claim(
        id="phase/step-about",
        printed="3K",
        unit="steps",
        measures="when attention falls, roughly",
        places=(
            Place(section="abstract", words="a sharp phase transition at approximately 3K steps"),
            Place(section="1", words="emerging through a sharp phase transition at approximately 3K training steps"),
            Place(section="1", item="Figure 2", words="remains moderate until approximately 3K steps"),
            Place(section="8", words="at least 3K steps in our setup"),
            Place(section="C", item="Figure 3", words="Before approximately 3K steps, semantic memory is learning"),
        ),
        note="The step at which the Gumbel temperature reaches the end of its fall, 1.0 → 0.1 over the first 3K steps.",
    ),
    Claim(
        id="phase/step",
        printed="3100",
        unit="steps",
        measures="when attention falls",
        places=(
            Place(section="7.2", words="the transition at step 3100"),
            Place(section="1", item="Figure 2", words="(axis cs:3100,0) – (axis cs:3100,42)"),
            Place(section="1", item="Figure 2", words="at (axis cs:3100,22) Phase Transition"),
            Place(section="C", item="Figure 3", words="(axis cs:3100,0) – (axis cs:3100,22)"),
            Place(section="C", item="Figure 3", words="(axis cs:3100,0.5) – (axis cs:3100,1.05)"),
        ),
        note="Half of the fall of figure 2 is over by step 2630, and at step 2900 it is at 16.7.",
    ),
    Claim(
        id="phase/arrow",
        printed="37.8, 1.6",
        unit="number",
        measures="ends of the arrow in figure 2 that is marked 37.8×, in percent of attention",
        places=(Place(section="1", item="Figure 2", words="(axis cs:800,37.8) – (axis cs:800,1.6)"),),
        note="Their ratio is 23.6.",
    ),
    Claim(
        id="phase/quality-threshold",
        printed="0.83",
        unit="number",
        measures="mean quality q̄ at which attention falls",
        places=(
            Place(section="7.2", words="when mean consolidation quality q̄ crosses approximately 0.83"),
            Place(section="C", item="Figure 3", words="(axis cs:0,0.83) – (axis cs:6000,0.83)"),
            Place(section="C", item="Figure 3", words="q̄^* ≈ 0.83"),
        ),
        note="Plotted at step 3000; at step 3100, where the transition is put, q̄ is plotted at 0.94.",
    ),
    Claim(
        id="phase/regions",
        printed="3000, 3200",
        unit="steps",
        measures="where figure 3 shades `pre-transition` to, and `post-transition` from",
        places=(
            Place(section="C", item="Figure 3", words="(axis cs:0,0) rectangle (axis cs:3000,22)"),
            Place(section="C", item="Figure 3", words="(axis cs:3200,0) rectangle (axis cs:6000,22)"),
        ),
    ),
    Claim(
        id="phase/conditions",
        printed="50%",
        unit="share",
        measures="recurring retrievals, at least, for consolidation to be of the greatest benefit",
        places=(Place(section="8", words="at least 50% of retrievals drawn from a recurring set"),),
    ),
    Claim(
        id="phase/quality-dynamics",
        printed="dq/dt = η_q · p · (1 - q)",
        unit="formula",
        measures="growth of mean quality q, p the probability of semantic routing",
        places=(Place(section="C", item="eq. 18", words="dq/dt = η_q · p · (1 - q)"),),
        note="Quality grows where semantic memory is used; but L_cons is taken of tokens that read episodically.",
    ),
    Claim(
        id="phase/routing-dynamics",
        printed="dp/dt = η_p · (q - q^*)",
        unit="formula",
        measures="growth of the probability p of semantic routing",
        places=(Place(section="C", item="eq. 19", words="dp/dt = η_p · (q - q^*)"),),
        note=(
            "Below q* semantic routing must fall. "
            "Figure 3 has constant attention there, and a q̄ that would need p to double."
        ),
    ),
    Claim(
        id="phase/fixed-points",
        printed="a saddle point at (q^*, p_low) and a stable fixed point at (1, 1)",
        unit="words",
        measures="fixed points of the two equations",
        places=(
            Place(
                section="C",
                words="This system has a saddle point at (q^*, p_low) and a stable fixed point at (1, 1)",
            ),
        ),
        note=(
            "The saddle is at (q*, 0). At (1, 1) dp/dt = η_p (1 - q*) > 0: no fixed point, unless p is held in 0..1, "
            "as the equations do not. They conserve a quantity, have no attractor, and below the separatrix run off."
        ),
    ),
    Claim(
        id="phase/seqboat-plot",
        printed="23 + 1.5*sin(x*0.18) + 0.8*rand",
        unit="formula",
        measures="attention of SeqBoat over training, as figure 2 plots it, in percent",
        places=(Place(section="1", item="Figure 2", words="23 + 1.5*sin(x*0.18) + 0.8*rand"),),
        note="A formula with a random term in the source of the figure, not measured points.",
    ),
    Claim(
        id="phase/jamba-plot",
        printed="12.5 + 0.5*sin(x*0.12)",
        unit="formula",
        measures="attention of Jamba over training, as figure 2 plots it, in percent",
        places=(Place(section="1", item="Figure 2", words="12.5 + 0.5*sin(x*0.12)"),),
        note="A formula, not measured points; a fixed share of attention layers would have no wave.",
    ),
)

_STEP = "training step"
_QUALITY = "quality q_t"
_BEYOND = "Reaches beyond q = 1, which exp(-…) cannot."

CURVES: tuple[Curve, ...] = (
    Curve(
        id="phase/attention",
        section="1",
        item="Figure 2, left",
        printed=(
            "(0,37.8) (500,36.5) (1000,34.0) (1500,30.5) (2000,26.0) (2500,21.0) (2800,18.0) (2900,16.7) (3000,14.0) "
            "(3050,10.0) (3100,5.0) (3150,2.8) (3200,2.0) (3300,1.8) (3500,1.6) (4000,1.5) (5000,1.5) (6000,1.4) "
            "(7000,1.5) (8000,1.5) (9000,1.6) (10000,1.6)"
        ),
        x=_STEP,
        y="attention fraction (%)",
        measures="attention of CRAM on SRCD over training",
        note="Figure 3 plots the same from 16.7 to 1.0. At step 6000 it is below the optimum of 1.5 %.",
    ),
    Curve(
        id="phase/quality-start",
        section="1",
        item="Figure 2, right",
        printed=(
            "(0.40,0.0) (0.45,0.3) (0.50,1.2) (0.55,3.5) (0.58,5.8) (0.60,7.5) (0.62,8.2) (0.64,7.8) (0.66,6.0) "
            "(0.70,3.2) (0.75,1.0) (0.80,0.2) (0.85,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality at step 0",
        note="Semantic memory is untrained at step 0.",
    ),
    Curve(
        id="phase/quality-3000",
        section="1",
        item="Figure 2, right",
        printed=(
            "(0.65,0.0) (0.70,0.2) (0.74,1.0) (0.78,3.5) (0.80,6.0) (0.82,9.0) (0.83,9.8) (0.84,9.2) (0.86,6.5) "
            "(0.88,3.0) (0.90,1.2) (0.93,0.3) (0.95,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality at step 3K",
        note="Figure 3 plots another curve for the same step.",
    ),
    Curve(
        id="phase/quality-after",
        section="1",
        item="Figure 2, right",
        printed=(
            "(0.90,0.0) (0.93,0.2) (0.95,1.0) (0.96,2.5) (0.97,5.5) (0.98,11.0) (0.99,16.5) (0.995,14.0) (1.00,8.0) "
            "(1.02,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality from step 3.1K on",
        note=f"One peak at 0.99; figure 3 has two at step 3.1K. {_BEYOND}",
    ),
    Curve(
        id="phase/attention-again",
        section="C",
        item="Figure 3, A",
        printed=(
            "(0,16.7) (500,16.7) (1000,16.8) (1500,16.7) (2000,16.6) (2500,16.7) (2800,16.5) (2900,16.4) (3000,14.0) "
            "(3050,9.5) (3100,3.5) (3150,1.8) (3200,1.2) (3300,1.0) (3500,1.0) (4000,1.0) (4500,1.0) (5000,1.0) "
            "(5500,1.0) (6000,1.0)"
        ),
        x=_STEP,
        y="attention usage (%)",
        measures="attention of CRAM on SRCD over training",
        note=(
            "Figure 2 plots the same from 37.8 to 1.6. Here 16.7 to 1.0, 16.7 times. "
            "It ends below the optimum of 1.5 %, with an accuracy that is put at 100 %."
        ),
    ),
    Curve(
        id="phase/quality-mean",
        section="C",
        item="Figure 3, B",
        printed=(
            "(0,0.62) (500,0.65) (1000,0.69) (1500,0.73) (2000,0.76) (2500,0.80) (2800,0.82) (2900,0.825) (3000,0.83) "
            "(3050,0.88) (3100,0.94) (3150,0.97) (3200,0.985) (3300,0.99) (3500,0.995) (4000,0.997) (4500,0.998) "
            "(5000,0.998) (5500,0.999) (6000,0.999)"
        ),
        x=_STEP,
        y="mean q̄",
        measures="mean quality over training",
        note="Rises steadily while attention is constant, which the two equations of the appendix exclude.",
    ),
    Curve(
        id="phase/quality-3000-again",
        section="C",
        item="Figure 3, C",
        printed=(
            "(0.68,0.0) (0.72,0.5) (0.76,2.0) (0.79,5.0) (0.81,8.5) (0.83,11.0) (0.85,8.0) (0.87,4.5) (0.89,1.5) "
            "(0.92,0.3) (0.95,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality at step 3K",
        note="Figure 2 plots another curve for the same step.",
    ),
    Curve(
        id="phase/quality-3100",
        section="C",
        item="Figure 3, C",
        printed=(
            "(0.72,0.0) (0.76,0.5) (0.80,2.5) (0.83,4.5) (0.85,3.5) (0.87,2.0) (0.89,1.5) (0.91,2.0) (0.93,3.5) "
            "(0.95,5.5) (0.97,7.0) (0.98,6.0) (0.99,4.0) (1.00,1.5) (1.02,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality at step 3.1K",
        note=f"Its area is 0.81 and its mean 0.90; panel B has 0.94 at this step. {_BEYOND}",
    ),
    Curve(
        id="phase/quality-4000",
        section="C",
        item="Figure 3, C",
        printed=(
            "(0.90,0.0) (0.93,0.3) (0.95,1.5) (0.96,3.5) (0.97,7.0) (0.98,13.0) (0.99,18.5) (0.995,15.0) (1.00,7.0) "
            "(1.02,0.0)"
        ),
        x=_QUALITY,
        y="density",
        measures="quality at step 4K",
        note=_BEYOND,
    ),
)
