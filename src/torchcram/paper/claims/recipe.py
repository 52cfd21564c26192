"""The paper's own settings: appendix A, and what the method section fixes."""

from __future__ import annotations

from torchcram.paper.claims.claim import Claim, Place, Unit


def _setting(name: str, printed: str, unit: Unit, measures: str, *words: str, note: str = "") -> Claim:
    places = tuple(Place(section="A", words=each) for each in words)
    return Claim(id=f"recipe/{name}", printed=printed, unit=unit, measures=measures, places=places, note=note)


CLAIMS: tuple[Claim, ...] = (
    _setting("width", "512", "number", "hidden dimension d", "Hidden dimension d: 512"),
    _setting("layers", "8", "number", "layers L", "Layers L: 8"),
    _setting("euler-steps", "3", "number", "steps K of the continuous-time expert", "CT steps K: 3"),
    _setting("slots", "512", "number", "episodic memory size M", "Episodic memory size M: 512"),
    Claim(
        id="recipe/rank",
        printed="32",
        unit="number",
        measures="rank r of semantic memory, d/16",
        places=(
            Place(section="A", words="Semantic adapter rank r: 32"),
            Place(section="4.2", words="with rank r = d/16 is trained to approximate episodic retrieval"),
            Place(section="1", item="Figure 1", words="rank r = d/16"),
        ),
    ),
    _setting(
        "semantic-rate",
        "0.1 ×",
        "times",
        "learning rate of consolidation, relative to the main one",
        "Consolidation LR: 0.1 × main LR",
    ),
    _setting("beta-1", "0.9", "number", "AdamW's β₁", "β_1=0.9"),
    _setting("beta-2", "0.98", "number", "AdamW's β₂", "β_2=0.98"),
    _setting("weight-decay", "0.01", "number", "AdamW's weight decay", "weight decay 0.01"),
    _setting("rate", "3e-4", "number", "learning rate, with cosine decay", "LR: 3e-4 with cosine decay"),
    _setting("batch", "32", "number", "sequences of a batch", "Batch size: 32"),
    _setting("steps", "10K", "steps", "training", "Steps: 10K"),
    _setting(
        "temperature",
        "1.0 → 0.1",
        "number",
        "Gumbel temperature at the start and at the end of its fall",
        "1.0 → 0.1 over first 3K steps",
    ),
    _setting(
        "temperature-steps",
        "3K",
        "steps",
        "fall of the Gumbel temperature",
        "1.0 → 0.1 over first 3K steps",
        note="Ends where the phase transition is: routing gets less noisy until then, whatever has been consolidated.",
    ),
    _setting("lambda-episodic", "0.1", "number", "λ_E, price of episodic routing", "λ_E = 0.1"),
    _setting("lambda-semantic", "0.05", "number", "λ_S, reward of semantic routing", "λ_S = 0.05"),
    _setting(
        "gamma",
        "0.5",
        "number",
        "weight γ of L_cons; the same letter as the exponent of the law of practice",
        "γ = 0.5",
    ),
    Claim(
        id="recipe/seeds",
        printed="5",
        unit="number",
        measures="random seeds of all experiments, with means and standard deviations",
        places=(Place(section="reproducibility", words="All experiments use 5 random seeds"),),
        note="Of all tables, only table 6 shows a deviation.",
    ),
    Claim(
        id="recipe/actions",
        printed="3",
        unit="number",
        measures="actions of the router: working memory only, episodic retrieval, semantic approximation",
        places=(
            Place(section="4.4", item="eq. 7", words="π_t = softmax(g_φ(z_t)) ∈ Δ^3"),
            Place(section="4.4", words="(1) CT only, (2) episodic retrieval, and (3) semantic approximation"),
            Place(section="4.4", words="(action 2) to semantic approximation (action 3)"),
        ),
    ),
)
