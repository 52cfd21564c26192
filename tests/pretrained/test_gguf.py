"""GGUF files: every kind of block, metadata, and damage."""

import struct

import numpy as np
import pytest

from tests.pretrained import files
from torchcram.pretrained import gguf


def half(number: float) -> bytes:
    return np.float16(number).tobytes()


def stored(tmp_path, number, shape, raw):
    path = tmp_path / "one.gguf"
    path.write_bytes(files.gguf({}, {"x": (shape, number, raw)}))
    return gguf.read(path)["x"]


def nibbles(weights) -> bytes:
    """32 weights of four bits: the first 16 in the low halves."""
    return bytes(low | high << 4 for low, high in zip(weights[:16], weights[16:], strict=True))


def fifth(weights) -> bytes:
    return struct.pack("<I", sum((weight >> 4) << place for place, weight in enumerate(weights)))


def test_small_blocks(tmp_path):
    rng = np.random.default_rng(0)
    four, five = rng.integers(0, 16, 32).tolist(), rng.integers(0, 32, 32).tolist()
    signed = rng.integers(-128, 128, 32)
    low = [weight & 15 for weight in five]
    cases = {
        2: (half(0.5) + nibbles(four), 0.5 * (np.array(four) - 8)),
        3: (half(0.5) + half(-2) + nibbles(four), 0.5 * np.array(four) - 2),
        6: (half(0.5) + fifth(five) + nibbles(low), 0.5 * (np.array(five) - 16)),
        7: (half(0.5) + half(-2) + fifth(five) + nibbles(low), 0.5 * np.array(five) - 2),
        8: (half(0.25) + signed.astype(np.int8).tobytes(), 0.25 * signed),
    }
    for number, (raw, expected) in cases.items():
        found = stored(tmp_path, number, (2, 64), raw * 4)
        np.testing.assert_array_equal(found, np.tile(expected, 4).reshape(2, 64), err_msg=str(number))
        assert found.dtype == np.float32


def test_blocks_of_256(tmp_path):
    rng = np.random.default_rng(1)
    scale, offset = rng.integers(0, 64, 8), rng.integers(0, 64, 8)
    packed = np.zeros(12, dtype=np.uint8)
    packed[:4] = scale[:4] | (scale[4:] >> 4) << 6
    packed[4:8] = offset[:4] | (offset[4:] >> 4) << 6
    packed[8:] = (scale[4:] & 15) | (offset[4:] & 15) << 4
    five = rng.integers(0, 32, (8, 32))
    low = (five & 15).reshape(4, 2, 32)
    four_bits = (low[:, 0] | low[:, 1] << 4).astype(np.uint8).tobytes()
    high = sum((five[group] >> 4) << group for group in range(8)).astype(np.uint8).tobytes()
    head = half(0.5) + half(0.25) + packed.tobytes()

    def expected(weights):
        return (0.5 * scale[:, None] * weights - 0.25 * offset[:, None]).reshape(1, 256)

    np.testing.assert_array_equal(stored(tmp_path, 12, (1, 256), head + four_bits), expected(five & 15))
    np.testing.assert_array_equal(stored(tmp_path, 13, (1, 256), head + high + four_bits), expected(five))

    six, scales = rng.integers(0, 64, (2, 4, 32)), rng.integers(-128, 128, 16)
    ql = np.concatenate([(six[:, :2] & 15) | (six[:, 2:] & 15) << 4], axis=1).astype(np.uint8).tobytes()
    qh = sum((six[:, group] >> 4) << 2 * group for group in range(4)).astype(np.uint8).tobytes()
    raw = ql + qh + scales.astype(np.int8).tobytes() + half(0.5)
    true = 0.5 * scales[:, None] * (six.reshape(16, 16) - 32)
    np.testing.assert_array_equal(stored(tmp_path, 14, (1, 256), raw), true.reshape(1, 256))


def test_plain_numbers_and_metadata(tmp_path):
    numbers = np.array([[1.5, -2.0, 0.25]], dtype=np.float32)
    metadata = {"a": 3, "b": 0.5, "c": "word", "d": [1, 2, 3], "e": ["x", "yz"], "f": True, "general.alignment": 64}
    bf16 = (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    tensors = {"f32": numbers, "f16": ((1, 3), 1, numbers.astype(np.float16).tobytes()), "bf16": ((1, 3), 30, bf16)}
    (tmp_path / "x.gguf").write_bytes(files.gguf(metadata, tensors, align=64))
    found = gguf.read(tmp_path / "x.gguf")
    assert found.metadata == metadata
    assert list(found) == ["f32", "f16", "bf16"]
    assert len(found) == 3
    for name in found:
        np.testing.assert_array_equal(found[name], numbers)


@pytest.mark.filterwarnings("error")
def test_numbers_that_make_no_sense_are_read_without_warnings(tmp_path):
    """Whoever loads a model looks for them."""
    raw = half(np.inf) + half(-np.inf) + bytes(16)
    assert np.isnan(stored(tmp_path, 3, (1, 32), raw)).all()
    raw = half(np.inf) + half(1) + bytes(16)
    assert np.isnan(stored(tmp_path, 3, (1, 32), raw)).all()


def test_damage_is_told(tmp_path):
    whole = files.gguf({"a": ["x", "y"], "b": 3}, {"w": np.ones((4, 8), dtype=np.float32)})
    path = tmp_path / "bad.gguf"
    for size in range(4, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"bad.gguf is damaged or cut short: .*; get it again") as told:
            gguf.read(path)
        assert "unpack" not in str(told.value)
    for data, message in (
        (b"ELF" + whole[3:], "is not a GGUF file: it does not begin with GGUF; get it again"),
        (files.gguf({}, {}, version=9), r"is of GGUF version 9; known: 2, 3\. If it is damaged, get it again"),
        (files.gguf({}, {"w": ((1, 256), 10, bytes(84))}), r"w is written in a way \(type 10\) that is not known"),
        (files.gguf({}, {"w": ((2, 16), 2, bytes(18))}), "is not whole"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            gguf.read(path)
