"""The law of practice and its comparison with human memory: section 7.4, figure 4."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Curve, Place

_HUMAN = "A range of exponents of response times, compared with the exponent of a probability."

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="practice/gamma",
        printed="0.43",
        unit="number",
        measures="γ of the power law that episodic routing is said to follow with repetition",
        places=(
            Place(section="abstract", words="(γ = 0.43 vs. γ_human ≈ 0.4–0.5)"),
            Place(section="9", words="(γ = 0.43 vs. γ_human ≈ 0.4–0.5)"),
            Place(section="H", item="Figure 4, A", words="Fit: γ = 0.43"),
            Place(section="H", item="Figure 4", words="a power law with exponent γ = 0.43"),
            Place(section="H", item="Figure 4, B", words="(CRAM, 0.43)"),
        ),
        note=(
            "The 13 points plotted in figure 4 give 0.56 by least squares of logarithms (0.51 of shares, 0.53 with the "
            "start held at 0.89). A smooth decay with k also contradicts a plateau of 3K steps: at the paper's batch a "
            "pattern is asked for 23 times a step, so that k = 100 is reached at step 5."
        ),
    ),
    Claim(
        id="practice/gamma-interval",
        printed="0.43 ± 0.04",
        unit="number",
        measures="γ and its uncertainty",
        places=(
            Place(section="7.4", words="follows a power law with γ = 0.43 ± 0.04"),
            Place(section="H", item="Figure 4, B", words="(axis cs:CRAM,0.39) – (axis cs:CRAM,0.47)"),
        ),
        note="The exponent of the plotted points is outside it.",
    ),
    Claim(
        id="practice/law",
        printed="T(k) = T_0 · k^-γ",
        unit="formula",
        measures="access time after k repetitions, in human studies",
        places=(Place(section="7.4", words="T(k) = T_0 · k^-γ"),),
    ),
    Claim(
        id="practice/fit",
        printed="0.89 · k^-0.43",
        unit="formula",
        measures="the curve that is drawn as a fit of the plotted points",
        places=(
            Place(section="H", item="Figure 4, A", words="0.89 * x^(-0.43)"),
            Place(section="H", item="Figure 4, A", words="P(k) = 0.89 · k^-0.43"),
        ),
        note="Passes through the first two of 13 points and above all others: 0.123 at k = 100, where 0.07 is plotted.",
    ),
    Claim(
        id="practice/human-curve",
        printed="0.89 * x^(-0.41)",
        unit="formula",
        measures="the curve that is drawn for humans",
        places=(
            Place(section="H", item="Figure 4, A", words="0.89 * x^(-0.41)"),
            Place(section="H", item="Figure 4, A", words="Human (γ = 0.41)"),
        ),
        note="Has the model's own start, 0.89; no human data are plotted.",
    ),
    Claim(
        id="practice/human",
        printed="0.4–0.5",
        unit="number",
        measures="γ in human studies",
        places=(
            Place(section="abstract", words="γ_human ≈ 0.4–0.5"),
            Place(section="7.4", words="γ ≈ 0.4–0.5 across studies"),
            Place(section="7.4", words="the range observed in human memory studies (γ = 0.4–0.5)"),
            Place(section="9", words="γ_human ≈ 0.4–0.5"),
            Place(section="H", item="Figure 4", words="(γ ≈ 0.4–0.5)"),
            Place(section="H", item="Figure 4, B", words="(axis cs:CRAM,0.40) rectangle (axis cs:N&R,0.50)"),
        ),
        note=_HUMAN,
    ),
    Claim(
        id="practice/rickard",
        printed="0.41",
        unit="number",
        measures="γ of Rickard (1997)",
        places=(Place(section="H", item="Figure 4, B", words="(Rickard, 0.41)"),),
        note=_HUMAN,
    ),
    Claim(
        id="practice/rickard-interval",
        printed="0.35, 0.47",
        unit="number",
        measures="bar around γ of Rickard (1997)",
        places=(Place(section="H", item="Figure 4, B", words="(axis cs:Rickard,0.35) – (axis cs:Rickard,0.47)"),),
    ),
    Claim(
        id="practice/newell-rosenbloom",
        printed="0.45",
        unit="number",
        measures="γ of Newell and Rosenbloom (1981)",
        places=(Place(section="H", item="Figure 4, B", words="(N&R, 0.45)"),),
        note=_HUMAN,
    ),
    Claim(
        id="practice/newell-rosenbloom-interval",
        printed="0.40, 0.50",
        unit="number",
        measures="bar around γ of Newell and Rosenbloom (1981)",
        places=(Place(section="H", item="Figure 4, B", words="(axis cs:N&R,0.40) – (axis cs:N&R,0.50)"),),
    ),
)

CURVES: tuple[Curve, ...] = (
    Curve(
        id="practice/episodic",
        section="H",
        item="Figure 4, A",
        printed=(
            "(1,0.89) (2,0.66) (3,0.54) (4,0.47) (5,0.41) (7,0.35) (10,0.28) (15,0.22) (20,0.19) (30,0.15) (50,0.11) "
            "(70,0.09) (100,0.07)"
        ),
        x="repetition count k",
        y="P_episodic(k)",
        measures="probability of episodic routing of a recurring pattern at its k-th repetition",
        note="Its exponent is 0.56, not the 0.43 that is printed.",
    ),
)
