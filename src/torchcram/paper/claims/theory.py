"""Theorems and bounds: section 5, the optimum of section 6, and appendix B."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Place

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="theory/static-order",
        printed="Ω(f · n)",
        unit="formula",
        measures="attention that any static routing scheme needs, f the share of positions that retrieve",
        places=(
            Place(section="abstract", words="any static routing scheme requires Ω(f · n) attention"),
            Place(section="1", words="any routing scheme requires Ω(f · n) attention for recurring-pattern tasks"),
        ),
        note="Weights can hold recurring patterns without any routing that depends on history.",
    ),
    Claim(
        id="theory/static-bound",
        printed="(1-ε) · f · n",
        unit="formula",
        measures="reads that any static routing scheme with accuracy of at least 1 - ε must make, in expectation",
        places=(
            Place(section="5.1", item="Theorem 1", words="E[attention ops] ≥ (1-ε) · f · n"),
            Place(section="5.1", item="Theorem 1", words="at least (1-ε) · f · n must use global attention"),
            Place(section="5.1", item="Theorem 1", words="achieving task accuracy ≥ 1 - ε must have"),
            Place(section="5.1", item="Theorem 1", words="To achieve accuracy ≥ 1 - ε, at most ε · f · n"),
            Place(section="B", words="For small ε relative to f, this gives Attn ≥ (1-ε) · f · n"),
        ),
        note=(
            "The proof counts a query that does not read as wrong; it can be guessed, or known by heart. "
            "Over queries and with guessing among V values the bound is (1 - ε·V/(V-1)) f n. "
            "Appendix B proves (f - ε) n, ε over positions; with the same ε that is less than (1-ε) f n, not more."
        ),
    ),
    Claim(
        id="theory/static-error",
        printed="f(K - |S|)/K",
        unit="formula",
        measures="errors of a static router that reads for |S| of K patterns, as a share of all positions",
        places=(
            Place(section="B", item="eq. 15", words="ε_error = ∑_i ∉ S f/K = f(K - |S|)/K"),
            Place(section="B", words="For accuracy ≥ 1 - ε, we need ε_error ≤ ε"),
            Place(section="B", words="Case 1: Pattern p_i has r(p_i) = local"),
            Place(section="B", words="Case 2: Pattern p_i has r(p_i) = global"),
            Place(section="B", words="K = p_1, …, p_K be the set of K recurring patterns"),
        ),
        note="Here ε is a share of all positions; in theorem 1 it is used as a share of the queries.",
    ),
    Claim(
        id="theory/static-patterns",
        printed="|S| ≥ K(1 - ε/f)",
        unit="formula",
        measures="patterns that a static router must read for",
        places=(Place(section="B", item="eq. 16", words="|S| ≥ K(1 - ε/f)"),),
    ),
    Claim(
        id="theory/static-bound-proved",
        printed="(f - ε) · n",
        unit="formula",
        measures="reads that the appendix derives for a static router, ε over all positions",
        places=(Place(section="B", item="eq. 17", words="≥ f · n (1 - ε/f) = (f - ε) · n"),),
        note="From ε = f on it asks for nothing: on SRCD, from an error at 5 % of the positions on.",
    ),
    Claim(
        id="theory/consolidated-bound",
        printed="ε_cons · f · n + O(√n log(K/δ))",
        unit="formula",
        measures="reads with which a consolidation-based scheme can have accuracy of at least 1 - ε",
        places=(
            Place(section="5.1", item="Corollary 1", words="≤ ε_cons · f · n + O(√n log(K/δ))"),
            Place(section="5.1", item="Corollary 1", words="can achieve accuracy ≥ 1 - ε with expected attention"),
            Place(section="5.1", item="Corollary 1", words="where ε_cons ≪ 1 is the fraction of patterns that fail"),
        ),
        note=(
            "Called sub-linear, but linear in n. No proof. At n = 2048, K = 100, δ = 0.05 the second term alone is "
            "6.1 % of n with a constant of 1: more than the static bound of 5 %."
        ),
    ),
    Claim(
        id="theory/query-share",
        printed="0.05",
        unit="share",
        measures="f of SRCD, the share of positions that query",
        places=(Place(section="5.1", words="consider SRCD with f = 0.05 (5% query positions)"),),
    ),
    Claim(
        id="theory/unconsolidated",
        printed="0.3",
        unit="share",
        measures="ε_cons of SRCD",
        places=(Place(section="5.1", words="70% recurring patterns (ε_cons = 0.3)"),),
        note="Defined as the share of patterns that fail to consolidate, and ≪ 1; used as the share of novel queries.",
    ),
    Claim(
        id="theory/static-srcd",
        printed="5%",
        unit="share",
        measures="the static lower bound on SRCD, in reads of all positions",
        places=(
            Place(section="5.1", words="The static routing lower bound is 0.05n = 5% attention"),
            Place(section="6", words="Static routing achieves at best 5%"),
        ),
    ),
    Claim(
        id="theory/consolidated-srcd",
        printed="1.5%",
        unit="share",
        measures="reads of CRAM on SRCD, by the corollary without its overhead",
        places=(
            Place(section="5.1", words="CRAM achieves 0.3 × 0.05n = 1.5% attention (plus overhead)"),
            Place(section="5.1", words="the 70% of recurring patterns are handled entirely by semantic memory"),
            Place(section="6", words="while CRAM approaches 1.5% as consolidation converges"),
        ),
    ),
    Claim(
        id="theory/opt",
        printed="1.5%",
        unit="share",
        measures="OPT of SRCD: queries × novel share",
        places=(
            Place(section="6", item="eq. 13", words="OPT = 0.05 × 0.30 = 1.5%"),
            Place(section="7.1", words="close to the 1.5% theoretical optimum"),
        ),
        note="Figure 2 goes down to 1.4 % and figure 3 to 1.0 %, below it.",
    ),
    Claim(
        id="theory/convergence",
        printed="ε_approx^2 + C/Tη",
        unit="formula",
        measures="expected squared error of semantic memory after T consolidation updates at rate η",
        places=(
            Place(section="5.2", item="Theorem 2", words="E[‖f_sem(x) - r^E(x)‖^2] ≤ ε_approx^2 + C/Tη"),
            Place(section="5.2", item="Theorem 2", words="with learning rate η < 2/L^2"),
        ),
        note=(
            "No proof. It holds for exact gradients of a squared error that is convex in the weights; "
            "with sampled gradients at a constant rate, what cannot be returned leaves an error in proportion to η. "
            "A map with a ReLU is not convex in its weights, and r^E moves while it is learned."
        ),
    ),
    Claim(
        id="theory/reduction",
        printed="1 - ρ + ε",
        unit="formula",
        measures="attention at step T ÷ at step 0, with probability of at least 1-δ, ρ the recurring share",
        places=(
            Place(section="5.2", item="Theorem 3", words="E[attention usage at step 0] ≤ 1 - ρ + ε"),
            Place(section="5.2", item="Theorem 3", words="with probability ≥ 1-δ"),
        ),
        note="At ρ = 0.7 it promises no more than 3.3 times less; 37.8 times would need ρ ≥ 0.974.",
    ),
    Claim(
        id="theory/reduction-steps",
        printed="T ≥ C/ε^2 f_min log ρ/δ",
        unit="formula",
        measures="steps after which theorem 3 holds",
        places=(Place(section="5.2", item="Theorem 3", words="after T ≥ C/ε^2 f_min log ρ/δ training steps"),),
        note=(
            "Where ε < ρ ≤ δ, it asks for no steps at all, but at step 0 the ratio is 1. "
            "It does not depend on the number of patterns, nor on how often one must be seen."
        ),
    ),
)
