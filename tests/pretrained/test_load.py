"""Models from files: the same one from each, with the tokens it should have."""

import itertools
import logging
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.pretrained import files
from torchcram.files import digest
from torchcram.pretrained import fetch, gguf, llama, tokens
from torchcram.pretrained.load import load

pytest.importorskip("transformers")

SHARED = Path(__file__).parents[2].parent / "shared" / "models"


def write(tmp_path, *, change=None, metadata=None):
    tensors, told = files.llama_tensors(np.random.default_rng(0)), files.llama_metadata()
    if change:
        change(tensors)
    path = tmp_path / "small.gguf"
    path.write_bytes(files.gguf({**told, **(metadata or {})}, tensors))
    return path


def plain(shape, weights, ids):
    """Logits, computed step by step with rotary pairs side by side, as the files mean them."""
    size = shape.width // shape.heads

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + shape.epsilon) * weight

    x = weights["token_embd.weight"][ids]
    count = len(ids)
    angle = torch.arange(count)[:, None] * shape.base ** (-torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]

    def turned(y):
        pairs = torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    mask = torch.ones(count, count, dtype=torch.bool).tril()
    for layer in range(shape.layers):
        w = {name.split(".")[2]: weight for name, weight in weights.items() if name.startswith(f"blk.{layer}.")}
        y = norm(x, w["attn_norm"])
        q = turned((y @ w["attn_q"].T).view(count, shape.heads, size))
        k = turned((y @ w["attn_k"].T).view(count, shape.shared, size)).repeat_interleave(2, 1)
        v = (y @ w["attn_v"].T).view(count, shape.shared, size).repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / size**0.5
        found = torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, -torch.inf).softmax(-1), v)
        x = x + found.flatten(1) @ w["attn_output"].T
        y = norm(x, w["ffn_norm"])
        gate = torch.nn.functional.silu(y @ w["ffn_gate"].T)
        x = x + (gate * (y @ w["ffn_up"].T)) @ w["ffn_down"].T
    return norm(x, weights["output_norm.weight"]) @ weights["token_embd.weight"].T


def test_a_gguf_file_gives_the_model_that_it_means(tmp_path):
    loaded = load(write(tmp_path))
    shape, _ = llama.from_gguf(gguf.read(tmp_path / "small.gguf"))
    weights = {k: torch.from_numpy(v) for k, v in files.llama_tensors(np.random.default_rng(0)).items()}
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    expected = plain(shape, weights, ids)
    torch.testing.assert_close(loaded.model(ids[None]).logits[0], expected, atol=1e-4, rtol=1e-4)
    assert loaded.tokenizer.encode("abc ab12") == [27, 28, 26, 30, 31]
    assert loaded.tokenizer.first is None
    assert loaded.context == 64
    assert loaded.note == ""
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_a_file_that_can_be_fetched_is_known_by_its_checksum(tmp_path, monkeypatch):
    path = write(tmp_path)
    source = fetch.Source("package", "1", "small.gguf", digest(path), "a model of 4 bits")
    monkeypatch.setitem(fetch.SOURCES, "known", source)
    assert (load(path).name, load(path).note) == ("known", "a model of 4 bits")
    monkeypatch.setitem(fetch.SOURCES, "known", source._replace(sha256="0" * 64))
    assert load(path).name == "small"


def test_texts_are_cut_alike_alone_and_together(tmp_path):
    tokenizer = load(write(tmp_path)).tokenizer
    texts = [f"abc ab {number}" for number in range(100)]
    assert list(tokenizer.encode_all(texts)) == [tokenizer.encode(text) for text in texts]
    assert list(tokens.Bytes().encode_all(["é", "ab"])) == [b"\xc3\xa9", b"ab"]


def test_a_llama2c_file_gives_the_same_model(tmp_path):
    (tmp_path / "tiny.bin").write_bytes(files.llama2c(np.random.default_rng(0)))
    words = [(b"<unk>", 0.0), (b"<s>", 0.0), (b"</s>", 0.0), *((bytes([b]), -9.0) for b in range(97, 97 + 25))]
    words += [(b" ", -8.0), (b"ab", -1.0), (b" a", -3.0), (b"abc", -2.0)]
    (tmp_path / "tok32.bin").write_bytes(files.pieces(words))
    loaded = load(tmp_path / "tiny.bin")
    other = load(write(tmp_path, metadata={"llama.rope.freq_base": 10_000.0}))
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    torch.testing.assert_close(loaded.model(ids).logits, other.model(ids).logits)
    numbers = {piece: number for number, (piece, _) in enumerate(words)}
    # "ab" has the best score, then "abc"; a space that finds no partner stays.
    assert loaded.tokenizer.encode("abc a") == [numbers[b" "], numbers[b"abc"], numbers[b" a"]]
    assert loaded.tokenizer.encode("") == []
    assert loaded.tokenizer.first == 1


def test_letters_that_are_no_piece_become_bytes():
    pieces = tokens.Pieces([b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256)), b" a"], [0.0] * 260)
    assert pieces.encode("aé") == [259, 3 + 0xC3, 3 + 0xA9]


def merged_one_by_one(pieces, text):
    """Of all neighbours, those merge whose piece has the highest score, the leftmost of them; and again."""
    found = [part for letter in f" {text}" for part in pieces._letter(letter.encode())]
    while True:
        pairs = [(pieces.numbers.get(a + b), -place) for place, (a, b) in enumerate(itertools.pairwise(found))]
        known = [(pieces.scores[number], place) for number, place in pairs if number is not None]
        if not known:
            return [pieces._number(piece) for piece in found]
        place = -max(known)[1]
        found[place : place + 2] = [found[place] + found[place + 1]]


def some_pieces(rng, *, spaces):
    """A vocabulary in which many pieces overlap and some scores are the same."""
    letters = list("abcé ") if spaces else list("abcé")
    words = {"".join(rng.choice(letters, rng.integers(1, 5))) for _ in range(60)} - set("abcé ")
    every = [b"<unk>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256)), *(w.encode() for w in sorted(words))]
    return tokens.Pieces(every, [-1e9] * 259 + rng.integers(-9, 0, len(words)).astype(float).tolist())


@pytest.mark.parametrize("seed", range(6))
def test_pieces_merge_as_if_one_by_one(seed):
    rng = np.random.default_rng(seed)
    pieces = some_pieces(rng, spaces=seed % 2)
    for size in (1, 2, 3, 50, 200):
        text = "".join(rng.choice(list("abcé "), size))
        assert pieces.encode(text) == merged_one_by_one(pieces, text), text


def test_a_long_text_is_merged_in_time():
    rng = np.random.default_rng(0)
    pieces = some_pieces(rng, spaces=True)
    text = "".join(rng.choice(list("abc "), 100_000))
    begun = time.perf_counter()
    assert len(pieces.encode(text)) < len(text)
    assert time.perf_counter() - begun < 20, "in all pairs again for each merge it would be hours"


def test_damage_and_what_is_not_known_are_told(tmp_path):
    whole = files.llama2c(np.random.default_rng(0))
    for data in (b"", whole[:20], whole[:-4], whole + bytes(4), b"\xff" * len(whole)):
        (tmp_path / "bad.bin").write_bytes(data)
        with pytest.raises(ValueError, match=r"bad.bin is damaged, or not a llama2.c file; get it again"):
            load(tmp_path / "bad.bin")
    (tmp_path / "tiny.bin").write_bytes(whole)
    with pytest.raises(FileNotFoundError, match=r"needs its vocabulary beside it: tok32.bin"):
        load(tmp_path / "tiny.bin")
    (tmp_path / "tok32.bin").write_bytes(b"1234" * 9)
    with pytest.raises(ValueError, match=r"tok32.bin is damaged, or not a vocabulary of 32 pieces"):
        load(tmp_path / "tiny.bin")
    for metadata, message in (
        ({"general.architecture": "gemma3"}, "is of the architecture gemma3; known: llama"),
        ({"tokenizer.ggml.model": "llama"}, r"has a tokenizer \(llama, smollm\) that is not known"),
        ({"llama.rope.scaling.type": "yarn"}, "has scaled rotary positions"),
        ({"llama.attention.key_length": 8}, "has heads of another size"),
        ({"llama.feed_forward_length": 25}, r"mlp.down_proj.weight.* have another shape"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "has a damaged tokenizer"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 99}, "begin with the token 99, which"),
        ({"general.alignment": 0}, "is damaged: its alignment is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            load(write(tmp_path, metadata=metadata))
    with pytest.raises(ValueError, match=r"weights that are not known: blk.0.attn_q.bias"):
        load(write(tmp_path, change=lambda tensors: tensors.update({"blk.0.attn_q.bias": np.ones(16, np.float32)})))
    with pytest.raises(ValueError, match=r"the weights do not fit: model.layers.1.mlp.up_proj.weight"):
        load(write(tmp_path, change=lambda tensors: tensors.pop("blk.1.ffn_up.weight")))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none.gguf"):
        load(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="neither a file nor a model that transformers can load"):
        load(tmp_path)


def test_weights_that_are_not_finite_are_told_at_once(tmp_path):
    def spoil(tensors):
        tensors["blk.1.attn_v.weight"][1, 2] = np.nan

    message = r"is damaged: tensor model.layers.1.self_attn.v_proj.weight has values that are not finite; get it again$"
    with pytest.raises(ValueError, match=rf"small.gguf {message}"):
        load(write(tmp_path, change=spoil))
    path = tmp_path / "tiny.bin"
    whole = bytearray(files.llama2c(np.random.default_rng(0)))
    whole[28:32] = np.float32(np.nan).tobytes()
    path.write_bytes(whole)
    (tmp_path / "tok32.bin").write_bytes(files.pieces([(bytes([97 + n]), 0.0) for n in range(32)]))
    with pytest.raises(ValueError, match=r"tiny.bin is damaged: tensor model.embed_tokens.weight has .* get it again$"):
        load(path)


def test_a_fetched_model_that_is_damaged_is_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCRAM_CACHE", str(tmp_path))
    hugging_face(fetch.folder("smollm2"), spoil=True)
    with pytest.raises(
        ValueError, match=r"^smollm2 is damaged: tensor .*; delete .*smollm2.* torchcram fetch smollm2$"
    ):
        load("smollm2")


def hugging_face(folder, *, words=True, spoil=False):
    """A small GPT-2, with a tokenizer or without."""
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    model = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_positions=16, n_embd=8, n_layer=1, n_head=2)).eval()
    if spoil:
        model.transformer.wpe.weight.data[3, 3] = torch.inf
    model.save_pretrained(folder)
    if words:
        made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
        PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return model


def test_a_folder_without_a_tokenizer_is_told(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    hugging_face(tmp_path / "gpt", words=False)
    sizes = {"vocab_size": 5, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained(tmp_path / "llama")
    for name in ("gpt", "llama"):
        with pytest.raises(ValueError, match=rf"{name} has no tokenizer that transformers can load, .*save_pretrained"):
            load(tmp_path / name)


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    hugging_face(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("transformer.h.0.mlp.c_fc.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"is no whole decoder: it has no weights for transformer.h.0.mlp.c_fc.weight"):
        load(tmp_path)


def test_logs_and_bars_of_libraries_are_not_shown_while_loading(tmp_path, monkeypatch):
    import transformers
    from huggingface_hub import utils as hub

    logs = transformers.utils.logging
    before = logs.get_verbosity(), hub.logging.get_verbosity()

    def fail(name, **given):
        for name in ("huggingface_hub.utils._http", "transformers.modeling_utils"):
            assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
        assert hub.are_progress_bars_disabled()
        assert not logs.is_progress_bar_enabled()
        raise OSError("no network.\nmore of it")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ValueError, match=r"^gpt2 is neither a file nor a model that .*: no network. Give the name"):
        load("gpt2")
    assert (logs.get_verbosity(), hub.logging.get_verbosity()) == before
    assert logs.is_progress_bar_enabled()
    assert not hub.are_progress_bars_disabled()


def test_a_hugging_face_folder_is_loaded(tmp_path):
    model = hugging_face(tmp_path)
    loaded = load(tmp_path)
    assert loaded.tokenizer.encode("aba") == [2, 0]
    assert loaded.context == 16
    assert loaded.vocabulary == 3
    ids = torch.tensor([[0, 1, 2]])
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits)


@pytest.mark.skipif(not SHARED.exists(), reason="needs the model files beside the project")
def test_a_real_small_model_tells_a_story():
    loaded = load(SHARED / "stories260K.bin")
    ids = torch.tensor([[1, *loaded.tokenizer.encode("Once upon a time")]])
    said = loaded.model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    words = {number: piece for piece, number in loaded.tokenizer.numbers.items()}
    assert b"".join(words[int(number)] for number in said).startswith(b", there was a little girl named Lily.")
