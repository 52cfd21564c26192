"""Models of Llama's shape, from files other than Hugging Face's."""

from __future__ import annotations

import importlib
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcram.pretrained.gguf import Array, Gguf


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a model."""

    width: int
    inner: int
    """Of the feed-forward parts."""
    layers: int
    heads: int
    shared: int
    """Heads of keys and values."""
    vocabulary: int
    context: int
    base: float = 10_000.0
    """Of the rotary positions."""
    epsilon: float = 1e-5
    """Of the norms."""


def build(shape: Shape, weights: Mapping[str, Tensor]) -> Any:
    """A Hugging Face model; one without weights of an output of its own uses those of its embedding."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.shared,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.base},
        tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    sizes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if bad := sorted(name for name, weight in weights.items() if name in sizes and sizes[name] != weight.shape):
        raise ValueError(
            f"the weights do not fit: {', '.join(bad)} have another shape than this kind of model gives them"
        )
    missing, unknown = model.load_state_dict(dict(weights), strict=False)
    if wrong := sorted({*unknown, *missing} - {"lm_head.weight"}):
        raise ValueError(f"the weights do not fit: {', '.join(wrong)}")
    model.tie_weights()
    return model.eval()


_IN_LLAMA2C = ("attention norm", "q", "k", "v", "o", "feed norm", "gate", "down", "up")
_NAMES = {
    "attention norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "feed norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "down": "mlp.down_proj",
    "up": "mlp.up_proj",
}
_IN_GGUF = {
    "attn_norm": "attention norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_norm": "feed norm",
    "ffn_gate": "gate",
    "ffn_down": "down",
    "ffn_up": "up",
}


def from_llama2c(path: str | os.PathLike[str]) -> tuple[Shape, dict[str, Tensor]]:
    """A file of llama2.c: seven numbers, then the weights."""
    data = Path(path).read_bytes()
    damaged = ValueError(
        f"{path} is damaged, or not a llama2.c file; get it again, or give a .gguf file or a Hugging Face folder"
    )
    if len(data) < 28:
        raise damaged
    width, inner, layers, heads, shared, vocabulary, context = struct.unpack_from("<7i", data)
    if min(width, inner, layers, heads, shared, context) < 1 or width % heads or heads % shared:
        raise damaged
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    shape = Shape(
        width=width,
        inner=inner,
        layers=layers,
        heads=heads,
        shared=shared,
        vocabulary=vocabulary,
        context=context,
    )
    narrow = shared * width // heads
    sizes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("attention norm", "feed norm"), (width,)),
        **dict.fromkeys(("q", "o"), (width, width)),
        **dict.fromkeys(("k", "v"), (narrow, width)),
        **dict.fromkeys(("gate", "up"), (inner, width)),
        "down": (width, inner),
    }
    tables = context * width // heads  # of rotary positions: two, each with half a head's numbers a position
    least = vocabulary * width + width + layers * sum(math.prod(size) for size in sizes.values()) + tables
    if len(data) != 28 + 4 * (least + (0 if tied else vocabulary * width)):
        raise damaged
    floats = np.frombuffer(data, dtype="<f4", offset=28)
    at = 0

    def take(*size: int) -> Tensor:
        nonlocal at
        at += math.prod(size)
        return torch.from_numpy(floats[at - math.prod(size) : at].reshape(size).copy())

    weights = {"model.embed_tokens.weight": take(vocabulary, width)}
    for part in _IN_LLAMA2C:
        weights |= dict(_layers(part, take(layers, *sizes[part]), shape))
    weights["model.norm.weight"] = take(width)
    if not tied:
        take(tables)
        weights["lm_head.weight"] = take(vocabulary, width)
    return shape, weights


def from_gguf(file: Gguf) -> tuple[Shape, dict[str, Tensor]]:
    """A GGUF file of the architecture `llama`."""
    kind = file.metadata.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"{file.path} is of the architecture {kind}; known: llama. Give a Hugging Face folder instead")

    def told(name: str, default: Any = None) -> Any:
        found = file.metadata.get(f"llama.{name}", default)
        if found is None:
            raise ValueError(f"{file.path} is damaged: it does not say llama.{name}; get it again")
        return found

    if file.metadata.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file:
        raise ValueError(f"{file.path} has scaled rotary positions; give a Hugging Face folder instead")
    heads = told("attention.head_count")
    size = told("embedding_length") // max(1, heads)
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if told(name, size) != size:
            raise ValueError(f"{file.path} has heads of another size ({name}); give a Hugging Face folder instead")
    shape = Shape(
        width=told("embedding_length"),
        inner=told("feed_forward_length"),
        layers=told("block_count"),
        heads=heads,
        shared=told("attention.head_count_kv", heads),
        vocabulary=file.places["token_embd.weight"].shape[0] if "token_embd.weight" in file else 0,
        context=told("context_length"),
        base=told("rope.freq_base", 10_000.0),
        epsilon=told("attention.layer_norm_rms_epsilon"),
    )
    weights: dict[str, Tensor] = {}
    for name in file:
        match name.split("."):
            case ["token_embd", "weight"]:
                weights["model.embed_tokens.weight"] = _tensor(file[name])
            case ["output_norm", "weight"]:
                weights["model.norm.weight"] = _tensor(file[name])
            case ["output", "weight"]:
                weights["lm_head.weight"] = _tensor(file[name])
            case ["blk", number, part, "weight"] if part in _IN_GGUF:
                own = _IN_GGUF[part]
                weights[f"model.layers.{number}.{_NAMES[own]}.weight"] = _turned(own, _tensor(file[name]), shape)
            case _:
                raise ValueError(f"{file.path} has weights that are not known: {name}")
    return shape, weights


def _layers(part: str, stacked: Tensor, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    for number, weight in enumerate(stacked):
        yield f"model.layers.{number}.{_NAMES[part]}.weight", _turned(part, weight, shape)


def _turned(part: str, weight: Tensor, shape: Shape) -> Tensor:
    """Rotary pairs lie side by side in these files; with Hugging Face, half a head apart."""
    if part not in ("q", "k"):
        return weight
    heads = shape.heads if part == "q" else shape.shared
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))
