"""Generation: what repeated full runs would give, from an explicit state."""

import copy

import pytest
import torch

from tests.models.feeding import assert_same_state
from torchcram import OutputConfig


@pytest.fixture(scope="module")
def prompt(events):
    return events(3, 25, seed=61)


@pytest.fixture(scope="module")
def model(lively, prompt):
    """A model that does not soon repeat itself, as most that learned nothing do."""
    for seed in range(40):
        model = lively({"episodic.convolution": 3}, seed=seed)
        if len(set(model.generate(prompt[0], 20, dt=prompt[1]).tokens.flatten().tolist())) >= 8:
            return model
    raise AssertionError("no seed gives such a model")


def continued_by_hand(model, tokens, dt, steps, step_dt):
    """Run everything again for each new token; also the least lead of a chosen token."""
    lead = torch.inf
    for _ in range(steps):
        best, second = model(tokens, dt=dt).logits[:, -1].topk(2).values.unbind(-1)
        lead = min(lead, float((best - second).min()))
        token = model(tokens, dt=dt).logits[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], dim=1)
        dt = torch.cat([dt, torch.full_like(dt[:, :1], step_dt)], dim=1)
    return tokens, dt, lead


@torch.no_grad()
def test_greedy_is_the_argmax_of_full_runs(model, prompt):
    tokens, dt = prompt
    whole, gaps, lead = continued_by_hand(model, tokens, dt, steps=30, step_dt=2.5)
    assert lead > 1e-4, "rounding may have decided something"
    result = model.generate(tokens, 30, dt=dt, step_dt=2.5)
    assert result.tokens.tolist() == whole[:, 25:].tolist()
    # The last added token has not been fed.
    straight = model(whole[:, :-1], dt=gaps[:, :-1])
    assert_same_state(result.state, straight.state)
    assert result.ledger == straight.ledger()


@torch.no_grad()
def test_step_dt_matters(model, prompt):
    tokens, dt = prompt
    one, hundred = (model.generate(tokens, 20, dt=dt, step_dt=gap).tokens for gap in (1.0, 100.0))
    assert not torch.equal(one, hundred)


@torch.no_grad()
def test_going_on_from_the_returned_state(model, prompt):
    tokens, dt = prompt
    whole = model.generate(tokens, 20, dt=dt)
    first = model.generate(tokens, 8, dt=dt)
    second = model.generate(first.tokens[:, -1:], 12, state=first.state)
    assert torch.equal(torch.cat([first.tokens, second.tokens], dim=1), whole.tokens)
    assert_same_state(second.state, whole.state)
    assert first.ledger + second.ledger == whole.ledger


@torch.no_grad()
def test_one_step_only_runs_the_prompt(model, prompt):
    tokens, dt = prompt
    result, out = model.generate(tokens, 1, dt=dt), model(tokens, dt=dt)
    assert torch.equal(result.tokens, out.logits[:, -1].argmax(-1, keepdim=True))
    assert_same_state(result.state, out.state)
    assert result.ledger == out.ledger()


def sample(model, prompt, **options):
    return model.generate(prompt[0], 20, dt=prompt[1], **options).tokens


def test_seeded_sampling_is_repeatable(model, prompt):
    first = sample(model, prompt, temperature=1.0, seed=1)
    torch.manual_seed(123)  # torch's own generator plays no part
    assert torch.equal(first, sample(model, prompt, temperature=1.0, seed=1))
    assert not torch.equal(first, sample(model, prompt, temperature=1.0, seed=2))
    assert not torch.equal(first, sample(model, prompt))


def test_sampling_without_a_seed_differs(model, prompt):
    assert not torch.equal(sample(model, prompt, temperature=1.0), sample(model, prompt, temperature=1.0))


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-6}, {"top_k": 1, "top_p": 0.5}, {"temperature": 1e-4}],
    ids=lambda options: " ".join(options),
)
def test_the_narrowest_choice_is_greedy(options, model, prompt):
    options = {"temperature": 1.0, "seed": 3} | options
    assert torch.equal(sample(model, prompt, **options), sample(model, prompt))


def test_the_widest_choice_is_plain_sampling(model, prompt):
    plain = sample(model, prompt, temperature=1.0, seed=4)
    assert torch.equal(plain, sample(model, prompt, temperature=1.0, seed=4, top_k=16))
    assert torch.equal(plain, sample(model, prompt, temperature=1.0, seed=4, top_p=1.0))


@torch.no_grad()
def test_samples_follow_the_probabilities(model, prompt):
    """4096 first tokens against the softmax, cut as asked: within five standard errors."""
    tokens, dt = prompt[0][:1, :4].expand(4096, -1), prompt[1][:1, :4].expand(4096, -1)
    logits = model(tokens[:1], dt=dt[:1]).logits[0, -1] / 0.7
    order = logits.argsort(descending=True)
    probabilities = logits.softmax(0)
    top_5 = torch.zeros(16).scatter(0, order[:5], probabilities[order[:5]])
    # The smallest set that reaches 0.6: those before the last of it do not.
    reached = probabilities[order].cumsum(0)
    count = int((reached < 0.6).sum()) + 1
    nucleus = torch.zeros(16).scatter(0, order[:count], probabilities[order[:count]])
    assert 1 < count < 16
    for options, expected in [({}, probabilities), ({"top_k": 5}, top_5), ({"top_p": 0.6}, nucleus)]:
        drawn = model.generate(tokens, 1, dt=dt, temperature=0.7, seed=5, **options).tokens
        share = torch.bincount(drawn[:, 0], minlength=16) / 4096
        expected = expected / expected.sum()
        error = (expected * (1 - expected) / 4096).sqrt()
        assert ((share - expected).abs() <= 5 * error).all()


@torch.no_grad()
def test_a_stopped_sequence_adds_nothing_more(model, prompt):
    tokens, dt = prompt
    free = model.generate(tokens, 20, dt=dt).tokens.tolist()
    # A token that ends the three sequences at different places, one of them in the middle.
    ends = {stop: [line.index(stop) if stop in line else 20 for line in free] for stop in range(16)}
    stop = max(ends, key=lambda stop: (len(set(ends[stop])) > 1 and 0 < min(ends[stop]) < 19, len(set(ends[stop]))))
    assert len(set(ends[stop])) > 1
    assert 0 < min(ends[stop]) < 19
    result = model.generate(tokens, 20, dt=dt, stop=stop)
    for row, end in enumerate(ends[stop]):
        assert result.tokens[row].tolist() == free[row][:end] + [stop] * (20 - end)
        # What came before the stop token has been fed, the stop token has not.
        fed = torch.cat([tokens[row], torch.tensor(free[row][: min(end, 19)], dtype=torch.int64)])
        gaps = torch.cat([dt[row], torch.ones(min(end, 19))])
        assert_same_state(result.state.select([row]), model(fed[None], dt=gaps[None]).state)
    assert result.ledger.positions == sum(25 + min(end, 19) for end in ends[stop])


@torch.no_grad()
def test_padded_prompts_equal_each_alone(model, prompt):
    tokens, dt = prompt
    mask = torch.ones(3, 25, dtype=torch.bool)
    mask[1, 9:] = False
    mask[2, :13] = False
    together = model.generate(tokens.masked_fill(~mask, -7), 15, dt=dt.masked_fill(~mask, torch.nan), mask=mask)
    for row, real in enumerate([slice(0, 25), slice(0, 9), slice(13, 25)]):
        alone = model.generate(tokens[row : row + 1, real], 15, dt=dt[row : row + 1, real])
        assert torch.equal(together.tokens[row : row + 1], alone.tokens)
        assert_same_state(together.state.select([row]), alone.state)


def test_training_mode_is_left_as_it_was(model, prompt):
    greedy = sample(model, prompt)
    model = copy.deepcopy(model).train()
    assert torch.equal(sample(model, prompt), greedy)
    assert model.training
    with pytest.raises(ValueError, match="tokens has ids from 99"):
        model.generate(torch.full((1, 3), 99), 2)
    assert model.training
    model.eval().generate(prompt[0], 2)
    assert not model.training


def test_other_heads_do_not_disturb(lively, prompt):
    heads = [
        OutputConfig(name="label", kind="classification", size=3),
        OutputConfig(name="next", kind="tokens", size=16),
    ]
    model = lively(seed=4, outputs=heads)
    result = model.generate(prompt[0], 5, dt=prompt[1])
    assert torch.equal(result.tokens[:, 0], model(prompt[0], dt=prompt[1]).logits["next"][:, -1].argmax(-1))


@pytest.mark.parametrize(
    "preset",
    [
        {"outputs": "labels", "size": 16},
        {"outputs": "tokens", "size": 15},
        {"channels": 2},
        {"vocabulary": {"a": 16, "b": 16}, "outputs": "tokens", "size": 16},
        {"inputs": "channels", "vocabulary": None, "channels": 2, "outputs": "tokens", "size": 16},
        {"outputs": [OutputConfig(name=name, kind="tokens", size=16) for name in ("a", "b")]},
    ],
    ids=["labels", "other vocabulary", "tokens and channels", "two fields", "channels", "two token heads"],
)
def test_models_that_cannot_generate_say_so(preset, lively):
    with pytest.raises(ValueError, match="generate needs a model with one token field as input and one 'tokens' head"):
        lively(**preset).generate(torch.zeros(1, 3, dtype=torch.int64), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, r"steps = 0 is not possible; allowed: at least 1"),
        ({"steps": -3}, r"steps = -3 is not possible"),
        ({"steps": 2.5}, r"steps = 2.5 is not possible"),
        ({"temperature": -0.1}, r"temperature = -0.1 is not possible; allowed: 0 \(likeliest token\) or above"),
        ({"temperature": float("nan")}, r"temperature = nan is not possible"),
        ({"top_k": 3}, r"top_k and top_p .* need temperature above 0"),
        ({"top_p": 0.5}, r"top_k and top_p .* need temperature above 0"),
        ({"temperature": 1.0, "top_k": 0}, r"top_k = 0 is not possible; allowed: 1 to 16"),
        ({"temperature": 1.0, "top_k": 17}, r"top_k = 17 is not possible; allowed: 1 to 16"),
        ({"temperature": 1.0, "top_k": 1.5}, r"top_k = 1.5 is not possible"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p = 0.0 is not possible; allowed: above 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.1}, r"top_p = 1.1 is not possible"),
        ({"temperature": 1.0, "top_p": float("nan")}, r"top_p = nan is not possible"),
        ({"stop": -1}, r"stop = -1 is not possible; allowed: 0 to 15"),
        ({"stop": 16}, r"stop = 16 is not possible; allowed: 0 to 15"),
        ({"step_dt": -1.0}, r"-1.0"),
        ({"step_dt": -1.0, "steps": 1}, r"step_dt = -1.0"),
        ({"step_dt": float("nan")}, r"nan"),
        (
            {"mask": torch.zeros(3, 25, dtype=torch.bool)},
            r"a prompt is all padding; each needs at least one real token",
        ),
        ({"mask": torch.ones(25, dtype=torch.bool)}, r"mask has shape \(25,\); expected \[batch, length\]"),
        ({"mask": torch.ones(3, 25)}, r"mask has dtype torch.float32; expected torch.bool"),
        ({"dt": torch.ones(3, 24)}, r"dt has shape \(3, 24\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_bad_arguments(options, message, model, prompt):
    with pytest.raises(ValueError, match=message):
        model.generate(prompt[0], **({"steps": 2} | options))


def test_bad_prompts(model, prompt):
    tokens, _ = prompt
    for bad, message in [
        (tokens[0], r"tokens has shape \(25,\); expected \[batch, length\]"),
        (tokens.float(), r"tokens has dtype torch.float32; expected integer token ids"),
        (tokens[:, :0], r"the input is empty"),
        (tokens + 16, r"tokens has ids from 16 to 31; allowed: 0 to 15"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.generate(bad, 2)
    with pytest.raises(ValueError, match="the state is of 2 sequences, the input of 3"):
        model.generate(tokens, 2, state=model.initial_state(2))


def test_very_low_temperature_is_greedy(model, prompt):
    assert torch.equal(sample(model, prompt, temperature=1e-42, seed=1), sample(model, prompt))
