"""Attention is found in every family; to look changes nothing, and to replace changes what is replaced."""

import pytest
import torch

from torchcram.config import CramConfig
from torchcram.models import baseline, build
from torchcram.pretrained import sites
from torchcram.pretrained.load import Pretrained
from torchcram.pretrained.sites import recording, replacing
from torchcram.pretrained.text import Windows

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
    elif family == "Gemma2":
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, sliding_window=8))
    elif family == "Gemma3":
        config = transformers.Gemma3TextConfig(**{**SMALL, "head_dim": 16, "sliding_window": 8})
        model = transformers.Gemma3ForCausalLM(config)
    elif family == "Gemma3, seeing":
        text = {**SMALL, "sliding_window": 8, "pad_token_id": 0}
        sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.Gemma3Config(
            text_config=text,
            vision_config={**sight, "image_size": 28, "patch_size": 14},
            mm_tokens_per_image=4,
            image_token_index=50,
        )
        model = transformers.AutoModelForCausalLM.from_config(config)
    else:
        model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SMALL))
    return model.eval().requires_grad_(False)


FAMILIES = ("GPT2", "Llama", "Qwen2", "Qwen3", "Gemma2", "Gemma3", "Gemma3, seeing")
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


def test_of_a_model_that_sees_only_what_reads_is_probed():
    model = make("Gemma3, seeing")
    assert sum(type(module).__name__.endswith("Attention") for module in model.modules()) > 3
    assert all("vision" not in site.name for site in sites.find(model))
    assert {site.width for site in sites.find(model)} == {32}
    loaded = Pretrained("seeing", model, None, "")
    assert not hasattr(model.config, "max_position_embeddings")
    assert loaded.context == 64
    assert len(sites.find(loaded.fresh())) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_half_precision_are_probed(dtype):
    model = make("Llama").to(dtype)
    found = sites.find(model)
    with recording(found) as kept:
        before = model(TOKENS).logits
    assert before.dtype == dtype
    true = {layer: heads.clone() for layer, _, heads in kept.each()}
    with replacing(found, {1: lambda seen: true[1].float()}, lambda: TOKENS):
        torch.testing.assert_close(model(TOKENS).logits, before)
    assert next(Pretrained("half", model, None, "").fresh().parameters()).dtype == dtype


def test_what_carries_a_state_is_known():
    like = CramConfig.preset("tiny", vocabulary=50).override({"layers": 3})
    configs = {"cram": like, **{name: baseline(name, like) for name in ("transformer", "jamba")}}
    own = {name: sites.Own(build(config)) for name, config in configs.items()}
    told = {name: sites.recurrent(model, sites.find(model)) for name, model in own.items()}
    assert told == {"transformer": False, "jamba": True, "cram": True}
    for family in FAMILIES:
        model = make(family)
        assert not sites.recurrent(model, sites.find(model)), family
    small = {key: SMALL[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_head": 16, "mamba_n_heads": 4}
    model = transformers.FalconH1ForCausalLM(transformers.FalconH1Config(**small, **heads, mamba_d_ssm=64))
    assert len(sites.find(model)) == 3, "attention in every layer, and a state beside it"
    assert sites.recurrent(model, sites.find(model))


def test_executed_losses_are_means_over_windows():
    torch.manual_seed(0)
    model = sites.Own(build(baseline("transformer", CramConfig.preset("tiny", vocabulary=50))).eval())
    tokens = torch.randint(50, (5, 12), generator=torch.Generator().manual_seed(1))
    tokens[4] = 7  # the last batch is smaller, and unlike the others
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    direct = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
    found = model.executed(Windows(tokens, torch.arange(5)), 4, "cpu")
    assert found["loss"] == pytest.approx(float(direct), abs=1e-5)
    assert found["reads"] == 1


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
