"""Writes test/golden/formats.json: matrices as other tools store them, and the numbers that these tools read in them.

    python scripts/goldens/formats.py

With PyPI's auto-gptq 0.7.1, autoawq 0.2.9, compressed-tensors 0.20.0, transformers 5.22.2 and torch. A case has the
quantization_config, the tensors of a matrix "m" (base64), and of the weights in float32 the SHA-256 and the first few.
Scales are passed to the tools as float32: they would round each weight to the type of its scale.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# A file beside this one has the name of a package.
sys.path = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]

import torch

random = torch.Generator().manual_seed(11)

DTYPES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def module_of(package: str, path: str):
    """One file of a package: all of it would want a GPU, or packages that are gone."""
    file = importlib.metadata.distribution(package).locate_file(path)
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=random, dtype=torch.int64).to(torch.int32)


def scales_of(*shape: int, dtype=torch.float16) -> torch.Tensor:
    """Some are negative, and some tiny."""
    made = torch.randn(shape, generator=random) * 0.02
    made.view(-1)[0] = 6e-8
    return made.to(dtype)


def packed(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of fields as a stream of words, lowest bits first."""
    rows = []
    for row in fields.tolist():
        stream = sum(field << (bits * i) for i, field in enumerate(row))
        rows.append([(stream >> (32 * i)) & 0xFFFFFFFF for i in range(len(row) * bits // 32)])
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def case(config: dict, tensors: dict[str, torch.Tensor], weights: torch.Tensor) -> dict:
    assert weights.dtype == torch.float32 and weights.isfinite().all()
    values = (weights + 0.0).contiguous().numpy()  # a zero loses its sign
    return {
        "config": config,
        "tensors": {
            name: [DTYPES[t.dtype], list(t.shape), base64.b64encode(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).decode()]
            for name, t in tensors.items()
        },
        "shape": list(weights.shape),
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        "first": values.reshape(-1)[:8].tolist(),
    }


# ---- GPTQ

QuantLinear = module_of("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear


def gptq(bits: int, group: int, *, inputs=256, outputs=32, ordered=True, v2=False, dtype=torch.float16) -> dict:
    size = inputs if group == -1 else group
    groups = inputs // size
    # A zero of 0 is stored as the largest number, which AutoGPTQ's own classes do not agree on.
    zeros = torch.randint(1 if v2 else 0, 2**bits - 1, (groups, outputs), generator=random)
    tensors = {
        "m.qweight": words(inputs * bits // 32, outputs),
        "m.qzeros": packed(zeros, bits),
        "m.scales": scales_of(groups, outputs, dtype=dtype),
        "m.g_idx": torch.arange(inputs, dtype=torch.int32) // size,
    }
    if not ordered:
        tensors["m.g_idx"] = tensors["m.g_idx"][torch.randperm(inputs, generator=random)]
    linear = QuantLinear(bits, size, inputs, outputs, False, weight_dtype=torch.float32)
    linear.qweight, linear.g_idx = tensors["m.qweight"], tensors["m.g_idx"]
    linear.scales = tensors["m.scales"].float()
    # AutoGPTQ knows no version 2: its zeros are those of version 1, stored as they are.
    linear.qzeros = packed(zeros - 1, bits) if v2 else tensors["m.qzeros"]
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": not ordered, "sym": False}
    if v2:
        config["checkpoint_format"] = "gptq_v2"
    return case(config, tensors, linear(torch.eye(inputs)).T)


# ---- AWQ

dequantize_gemm = module_of("autoawq", "awq/utils/packing_utils.py").dequantize_gemm


def awq(group: int, *, inputs=256, outputs=40) -> dict:
    size = inputs if group == -1 else group
    tensors = {
        "m.qweight": words(inputs, outputs // 8),
        "m.qzeros": words(inputs // size, outputs // 8),
        "m.scales": scales_of(inputs // size, outputs),
    }
    weights = dequantize_gemm(tensors["m.qweight"], tensors["m.qzeros"], tensors["m.scales"].float(), 4, size)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return case(config, tensors, weights.T)


def cases() -> dict[str, dict]:
    return {
        "gptq 2 bits, groups of 32": gptq(2, 32),
        "gptq 3 bits, groups of 64": gptq(3, 64),
        "gptq 4 bits, groups of 128": gptq(4, 128),
        "gptq 4 bits, bfloat16 scales": gptq(4, 32, dtype=torch.bfloat16),
        "gptq 4 bits, one group": gptq(4, -1, inputs=192),
        "gptq 8 bits, groups of 64": gptq(8, 64, outputs=36),
        "gptq 4 bits, version 2": gptq(4, 64, v2=True),
        "gptq 4 bits, act-order": gptq(4, 32, ordered=False),
        "gptq 3 bits, act-order": gptq(3, 64, ordered=False),
        "awq groups of 32": awq(32),
        "awq groups of 64": awq(64),
        "awq groups of 128": awq(128),
        "awq one group": awq(-1, inputs=96),
    }


if __name__ == "__main__":
    path = ROOT / "test/golden/formats.json"
    path.write_text(json.dumps(cases(), indent=2) + "\n")
    subprocess.run([ROOT / "node_modules/.bin/biome", "format", "--write", path], check=True)
