"""Small model files, written here byte by byte."""

import struct

import numpy as np

STRING, LIST, UINT, FLOAT, FLAG = 8, 9, 4, 6, 7


def word(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item) -> bytes:
    """A value of metadata, its type before it."""
    if isinstance(item, bool):
        return struct.pack("<I?", FLAG, item)
    if isinstance(item, int):
        return struct.pack("<II", UINT, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + word(item)
    inner = value(item[0])[:4]
    return struct.pack("<I", LIST) + inner + struct.pack("<Q", len(item)) + b"".join(value(each)[4:] for each in item)


def gguf(metadata: dict, tensors: dict, *, version: int = 3, align: int = 32) -> bytes:
    """A GGUF file; tensors by name: float32 arrays, or (shape, number of the type, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for name, item in metadata.items():
        head += word(name) + value(item)
    data = b""
    for name, tensor in tensors.items():
        if isinstance(tensor, np.ndarray):
            tensor = tensor.shape, 0, tensor.astype("<f4").tobytes()
        shape, number, raw = tensor
        head += word(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", number, len(data))
        data += raw + bytes(-len(raw) % align)
    return head + bytes(-len(head) % align) + data


def llama_tensors(rng, *, width=16, inner=24, layers=2, heads=4, shared=2, vocabulary=32) -> dict[str, np.ndarray]:
    """Weights of a Llama, by their names in a GGUF file."""

    def normal(*shape):
        return (0.3 * rng.normal(size=shape)).astype(np.float32)

    found = {"token_embd.weight": normal(vocabulary, width), "output_norm.weight": 1 + normal(width)}
    narrow = width * shared // heads
    for layer in range(layers):
        found |= {
            f"blk.{layer}.attn_norm.weight": 1 + normal(width),
            f"blk.{layer}.attn_q.weight": normal(width, width),
            f"blk.{layer}.attn_k.weight": normal(narrow, width),
            f"blk.{layer}.attn_v.weight": normal(narrow, width),
            f"blk.{layer}.attn_output.weight": normal(width, width),
            f"blk.{layer}.ffn_norm.weight": 1 + normal(width),
            f"blk.{layer}.ffn_gate.weight": normal(inner, width),
            f"blk.{layer}.ffn_up.weight": normal(inner, width),
            f"blk.{layer}.ffn_down.weight": normal(width, inner),
        }
    return found


def llama_metadata(*, width=16, inner=24, layers=2, heads=4, shared=2, vocabulary=32, context=64) -> dict:
    """What a GGUF file says of such a model."""
    letters = [chr(97 + number) for number in range(26)]
    tokens = [*letters, "ab", "abc", "Ġ", "Ġa", "1", "2"]
    assert len(tokens) == vocabulary
    return {
        "general.architecture": "llama",
        "llama.embedding_length": width,
        "llama.feed_forward_length": inner,
        "llama.block_count": layers,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": shared,
        "llama.context_length": context,
        "llama.rope.freq_base": 1000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b", "ab c", "Ġ a"],
        "tokenizer.ggml.add_bos_token": False,
    }


def llama2c(rng, *, width=16, inner=24, layers=2, heads=4, shared=2, vocabulary=32, context=64) -> bytes:
    """The same model as `llama_tensors` of the same generator, as a file of llama2.c."""
    given = {"width": width, "inner": inner, "layers": layers, "heads": heads, "shared": shared}
    tensors = llama_tensors(rng, **given, vocabulary=vocabulary)
    data = struct.pack("<7i", width, inner, layers, heads, shared, vocabulary, context)
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_down", "ffn_up")
    arrays = [tensors["token_embd.weight"]]
    arrays += [tensors[f"blk.{layer}.{part}.weight"] for part in parts for layer in range(layers)]
    arrays += [tensors["output_norm.weight"], np.zeros(context * width // heads, dtype=np.float32)]
    return data + b"".join(array.astype("<f4").tobytes() for array in arrays)


def pieces(words: list[tuple[bytes, float]]) -> bytes:
    """A llama2.c vocabulary."""
    data = struct.pack("<i", max(len(piece) for piece, _ in words))
    return data + b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in words)
