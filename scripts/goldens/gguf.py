"""Writes test/golden/gguf with PyPI's gguf 0.19.0: the expected results of our GGUF reader and decoders.

    python scripts/goldens/gguf.py <SmolLM2-135M-Instruct.Q4_1.gguf>

types.json: each tensor type's code, and the items and bytes of its block.
blocks.json: a few blocks of each type, base64, and the SHA-256 of their f32 values.
codebooks.json: SHA-256 of each table of rows that IQ types name.
smollm2.json: the default model's metadata and tensors, and SHA-256 of the f32 values of two.
"""

import base64
import hashlib
import json
import pathlib
import subprocess
import sys

# This file has the package's name: it must not be found in its place.
HERE = pathlib.Path(__file__).resolve().parent
sys.path = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, GGUFValueType
from gguf.quants import _type_traits, dequantize

ROOT = HERE.parents[1]
FOLDER = ROOT / "test/golden/gguf"

# Where a block has its f16 scales, in bytes from its start.
SCALES = {
    Type.F32: [],
    Type.F16: [0],
    Type.BF16: [],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ1_S: [0],
    Type.IQ1_M: [],
    Type.IQ2_XXS: [0],
    Type.IQ2_XS: [0],
    Type.IQ2_S: [0],
    Type.IQ3_XXS: [0],
    Type.IQ3_S: [0],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.TQ1_0: [52],
    Type.TQ2_0: [64],
    Type.MXFP4: [],
    Type.NVFP4: [],
}

# Of the types without an f16 scale, a byte that would make it infinite, and the bits that it may have.
BOUNDED = {
    Type.F32: (3, 0xBF),
    Type.BF16: (1, 0xBF),
    Type.IQ1_M: (55, 0xBF),
    Type.MXFP4: (0, 0x7F),
}

# As f16: 0, -0, the least subnormal, the greatest (negative too), the least normal, 1, -1, limits.
EXTREMES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def blocks_of(kind: Type, random: np.random.Generator) -> dict[str, str]:
    """Random quants; each extreme as a scale, with another as the minimum, then ordinary scales."""
    items, size = GGML_QUANT_SIZES[kind]
    count = 64 if items == 1 else 4 + len(EXTREMES)
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for column, at in enumerate(SCALES[kind]):
        extremes = np.roll(np.array(EXTREMES, dtype=np.uint16), 3 * column)
        ordinary = random.normal(0, 0.02, count - len(EXTREMES)).astype(np.float16).view(np.uint16)
        scales = np.concatenate([extremes, ordinary])
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    if kind in BOUNDED:
        # No NaN: its payload is nobody's business.
        at, mask = BOUNDED[kind]
        blocks[:, at] &= mask
    values = dequantize(blocks.reshape(-1), kind) if items == 1 else dequantize(blocks, kind)
    values = values.astype(np.float32).reshape(-1)
    assert values.size == count * items and np.isfinite(values).all()
    return {"blocks": base64_of(blocks), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}


def codebooks() -> dict[str, str]:
    """SHA-256 of the rows that quants name, as int8."""
    made = {}
    for kind, traits in _type_traits.items():
        traits.init_grid()
        if traits.grid is not None:
            made[kind.name] = hashlib.sha256(traits.grid.astype(np.int8).tobytes()).hexdigest()
    return made


def value_of(field) -> object:
    value = field.contents()
    if field.types[0] is not GGUFValueType.ARRAY:
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {"length": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def model_of(path: str) -> dict[str, object]:
    reader = GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    decoded = ("token_embd.weight", "blk.17.ffn_down.weight")
    return {
        "metadata": {
            name: value_of(field)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.")
        },
        "tensors": {
            name: f"{tensor.tensor_type.name} {'x'.join(map(str, reversed(tensor.shape)))}"
            f" at {tensor.data_offset}, {tensor.n_bytes} bytes"
            for name, tensor in tensors.items()
        },
        "sha256": {
            name: hashlib.sha256(
                dequantize(tensors[name].data, tensors[name].tensor_type).tobytes()
            ).hexdigest()
            for name in decoded
        },
    }


def write(name: str, content: object) -> None:
    path = FOLDER / name
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    subprocess.run([ROOT / "node_modules/.bin/biome", "format", "--write", path], check=True)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    write("types.json", {kind.name: [kind.value, *GGML_QUANT_SIZES[kind]] for kind in Type})
    write("blocks.json", {kind.name: blocks_of(kind, random) for kind in SCALES})
    write("codebooks.json", codebooks())
    write("smollm2.json", model_of(sys.argv[1]))
