"""Attention is found in every family; to look changes nothing, and to replace changes what is replaced."""

import pytest
import torch

from torchcram.config import CramConfig
from torchcram.models import baseline, build
from torchcram.pretrained import sites
from torchcram.pretrained.sites import recording, replacing

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def make(family):
    torch.manual_seed(0)
    if family == "GPT2":
        config = transformers.GPT2Config(
            vocab_size=50, n_positions=64, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    elif family == "Gemma3":
        config = transformers.Gemma3TextConfig(**{**SMALL, "head_dim": 16, "sliding_window": 8})
        model = transformers.Gemma3ForCausalLM(config)
    else:
        model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SMALL))
    return model.eval().requires_grad_(False)


FAMILIES = ("GPT2", "Llama", "Qwen2", "Qwen3", "Gemma3")
TOKENS = torch.arange(2 * 20).view(2, 20) % 50


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_found_and_looking_changes_nothing(family):
    model = make(family)
    found = sites.find(model)
    assert len(found) == 3
    assert {site.heads for site in found} == {4}
    assert {site.width for site in found} == {64 if family == "Gemma3" else 32}
    before = model(TOKENS).logits
    outputs = []
    handles = [
        site.inward.register_forward_hook(
            lambda module, args, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        )
        for site in found
    ]
    with recording(found) as kept:
        during = model(TOKENS).logits
    for handle in handles:
        handle.remove()
    assert torch.equal(before, during)
    assert torch.equal(before, model(TOKENS).logits)
    for layer, given, heads in kept.each():
        assert given.shape == (2, 20, 32)
        bias = found[layer].bias
        expected = found[layer].project(heads) + (0 if bias is None else bias)
        torch.testing.assert_close(expected, outputs[layer])
    assert (found[0].bias is not None) == (family == "GPT2")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_heads_return_can_be_replaced(family):
    model = make(family)
    found = sites.find(model)
    before = model(TOKENS).logits
    with recording(found) as kept:
        model(TOKENS)
    true = {layer: heads.clone() for layer, _, heads in kept.each()}
    seen = []

    def same(layer):
        def predict(what):
            seen.append(what)
            return true[layer]

        return predict

    with replacing(found, {layer: same(layer) for layer in true}, lambda: TOKENS):
        torch.testing.assert_close(model(TOKENS).logits, before)
    assert all(what.tokens is TOKENS for what in seen)
    assert [what.given.shape for what in seen] == [(2, 20, 32)] * 3
    nothing = {1: lambda what: torch.zeros_like(true[1])}
    with replacing(found, nothing, lambda: TOKENS):
        without = model(TOKENS).logits
    assert not torch.allclose(without, before)
    assert torch.equal(model(TOKENS).logits, before)
    # Without the first layer's attention, what a token says depends on nothing before it, until the next layer.
    which = torch.tensor([True, False, False, True])
    with replacing(found, nothing, lambda: TOKENS, heads={1: which}), recording(found) as kept:
        model(TOKENS)
    # Hooks run in the order they were put: the recording sees what was put in.
    halves = kept.heads[1].view(2, 20, 4, -1)
    assert not halves[:, :, which].any()
    torch.testing.assert_close(halves[:, :, ~which], true[1].view(2, 20, 4, -1)[:, :, ~which])


def test_a_model_without_attention_is_told():
    with pytest.raises(ValueError, match="no attention was found in Linear"):
        sites.find(torch.nn.Linear(2, 2))
    config = transformers.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ValueError, match="no attention was found in MambaForCausalLM"):
        sites.find(transformers.MambaForCausalLM(config))


def test_a_layer_that_did_not_attend_is_told():
    found = sites.find(make("Llama"))
    with recording(found) as kept, pytest.raises(ValueError, match="layer 0 did not attend"):
        list(kept.each())


@pytest.mark.parametrize("name", ["transformer", "jamba", "cram"])
def test_models_of_this_project_look_the_same(name):
    torch.manual_seed(0)
    like = CramConfig.preset("tiny", vocabulary=50).override({"layers": 3})
    model = sites.Own(build(like if name == "cram" else baseline(name, like)).eval()).requires_grad_(False)
    found = sites.find(model)
    assert len(found) == (1 if name == "jamba" else 3)
    before = model(TOKENS).logits
    if name != "cram":
        torch.testing.assert_close(before, model.model(TOKENS).logits)
    outputs = []
    handles = [site.outward.register_forward_hook(lambda module, args, out: outputs.append(out)) for site in found]
    with recording(found) as kept:
        during = model(TOKENS).logits
    for handle in handles:
        handle.remove()
    assert torch.equal(before, during)
    for layer, given, heads in kept.each():
        assert given.shape == heads.shape == (2, 20, 64)
        torch.testing.assert_close(found[layer].project(heads), outputs[layer])
    true = {layer: heads.clone() for layer, _, heads in kept.each()}
    with replacing(found, {0: lambda seen: true[0]}, lambda: TOKENS):
        torch.testing.assert_close(model(TOKENS).logits, before)
    with replacing(found, {0: lambda seen: torch.zeros_like(true[0])}, lambda: TOKENS):
        assert not torch.allclose(model(TOKENS).logits, before)
    assert model.get_input_embeddings().weight.shape == (50, 64)


def test_a_model_that_attends_nowhere_is_told():
    model = build(baseline("mamba", CramConfig.preset("tiny", vocabulary=50)))
    with pytest.raises(ValueError, match="no layer of this model has attention at every position"):
        sites.find(sites.Own(model))


def test_hooks_go_whatever_happens():
    model = make("Llama")
    found = sites.find(model)
    before = model(TOKENS).logits
    nothing = dict.fromkeys((0, 9), lambda seen: torch.zeros(2, 20, 32))
    with pytest.raises(IndexError), replacing(found, nothing, lambda: TOKENS):
        pass

    def fail():
        with replacing(found, {0: nothing[0]}, lambda: TOKENS), recording(found) as kept:
            model(TOKENS)
            assert not kept.heads[0].any()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(model(TOKENS).logits, before)
    with recording(found) as kept:
        pass
    model(TOKENS)
    assert kept.heads == [None] * 3
