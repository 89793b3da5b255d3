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
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# A file beside this one has the name of a package.
sys.path = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]

# Some functions would be compiled, which takes longer than to run them.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from transformers.integrations.bitnet import unpack_weights
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, _dequantize_fp8_weight

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
    return torch.randint(-(2**31), 2**31, shape, generator=random, dtype=torch.int64).to(
        torch.int32
    )


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
            name: [
                DTYPES[t.dtype],
                list(t.shape),
                base64.b64encode(
                    t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                ).decode(),
            ]
            for name, t in tensors.items()
        },
        "shape": list(weights.shape),
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        "first": values.reshape(-1)[:8].tolist(),
    }


# ---- GPTQ

QuantLinear = module_of("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear


def gptq(
    bits: int, group: int, *, inputs=256, outputs=32, ordered=True, v2=False, dtype=torch.float16
) -> dict:
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
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": not ordered,
        "sym": False,
    }
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
    weights = dequantize_gemm(
        tensors["m.qweight"], tensors["m.qzeros"], tensors["m.scales"].float(), 4, size
    )
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
    }
    return case(config, tensors, weights.T)


# ---- FP8


def byte_floats(*shape: int, dtype=torch.float8_e4m3fn) -> torch.Tensor:
    """All bits but those of NaN and infinity."""
    largest = 0x7E if dtype == torch.float8_e4m3fn else 0x7B
    made = torch.randint(0, largest + 1, shape, generator=random)
    signs = 128 * torch.randint(0, 2, shape, generator=random)
    return (made + signs).to(torch.uint8).view(dtype)


def fp8(
    shape: tuple, scales: torch.Tensor, *, block=None, name="scale_inv", dtype=torch.float8_e4m3fn
) -> dict:
    tensors = {
        "m.weight": byte_floats(*shape, dtype=dtype),
        f"m.weight_{name}": scales,
        "m.input_scale": torch.ones(1),
    }
    if block:
        weights = _dequantize_fp8_weight(tensors["m.weight"], scales, list(block), torch.float32)
    else:
        weights = Fp8Dequantize(None)._dequantize_one(tensors["m.weight"], scales, torch.float32)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    return case(config, tensors, weights)


# ---- compressed-tensors


def compressed(
    format: str, tensors: dict[str, torch.Tensor], args: dict, weights: torch.Tensor | None = None
) -> dict:
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    if weights is None:
        exact = {
            name: (
                tensor.float()
                if name == "weight_scale" and tensor.dtype.is_floating_point
                else tensor
            )
            for name, tensor in tensors.items()
        }
        weights = (
            BaseCompressor.get_value_from_registry(format)
            .decompress(exact, scheme)["weight"]
            .float()
        )
    group = {"targets": ["Linear"], "weights": args}
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
    }
    return case(config, {f"m.{name}": tensor for name, tensor in tensors.items()}, weights)


def pack_quantized(
    bits: int, group: int | None, *, symmetric=True, ordered=True, inputs=256, outputs=24
) -> dict:
    groups = 1 if group is None else inputs // group
    tensors = {
        "weight_packed": words(outputs, inputs * bits // 32),
        "weight_scale": scales_of(outputs, groups, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    args = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
    }
    if group:
        args["group_size"] = group
    if not symmetric:
        tensors["weight_zero_point"] = words(outputs * bits // 32, groups)
    if ordered:
        return compressed("pack-quantized", tensors, args)
    # The library does not read this any more: as its former versions defined it.
    groups_of = (torch.arange(inputs) // group)[torch.randperm(inputs, generator=random)]
    quants = unpack_from_int32(tensors["weight_packed"], bits, tensors["weight_shape"])
    weights = quants.float() * tensors["weight_scale"].float()[:, groups_of]
    tensors["weight_g_idx"] = groups_of.to(torch.int32)
    return compressed("pack-quantized", tensors, args, weights)


def naive(
    format: str,
    weight: torch.Tensor,
    scale: torch.Tensor,
    args: dict,
    zero: torch.Tensor | None = None,
) -> dict:
    tensors = {"weight": weight, "weight_scale": scale}
    if zero is not None:
        tensors["weight_zero_point"] = zero
    return compressed(format, tensors, args)


def signed_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=random).to(torch.int8)


def float_pairs(group: int, *, inputs=128, outputs=24) -> dict:
    pairs = torch.randint(0, 256, (outputs, inputs // 2), generator=random).to(torch.uint8)
    args = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": group}
    if group == 32:
        scale = torch.randint(100, 140, (outputs, inputs // 32), generator=random).to(torch.uint8)
        tensors = {"weight_packed": pairs, "weight_scale": scale}
        return compressed("mxfp4-pack-quantized", tensors, {**args, "strategy": "group"})
    scale = byte_floats(outputs, inputs // 16).float().abs().to(torch.float8_e4m3fn)
    whole = torch.tensor([1234.5])
    args = {**args, "strategy": "tensor_group"}
    # The library would unpack to bfloat16.
    unpacked = unpack_fp4_from_uint8(pairs, outputs, inputs, dtype=torch.float32)
    weights = dequantize(
        unpacked,
        scale.float(),
        args=QuantizationArgs(**args),
        global_scale=whole,
        dtype=torch.float32,
    )
    tensors = {"weight_packed": pairs, "weight_scale": scale, "weight_global_scale": whole}
    return compressed("nvfp4-pack-quantized", tensors, args, weights)


# ---- BitNet


def bitnet(kind: str, *, inputs=160, outputs=24) -> dict:
    ternary = torch.randint(0, 3, (4, outputs // 4, inputs), generator=random)
    weight = sum(ternary[i] << (2 * i) for i in range(4)).to(torch.uint8)
    scale = torch.tensor([1.7], dtype=torch.bfloat16)
    unscaled = unpack_weights(weight, dtype=torch.float32)
    weights = unscaled * scale.float() if kind == "autobitlinear" else unscaled / scale.float()
    config = {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": "offline"}
    return case(config, {"m.weight": weight, "m.weight_scale": scale}, weights)


def cases() -> dict[str, dict]:
    channel = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    floats = {**channel, "type": "float"}
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
        "fp8 in blocks": fp8((64, 96), scales_of(2, 3, dtype=torch.float32), block=(32, 32)),
        "fp8 in blocks that do not divide it": fp8(
            (72, 40), scales_of(3, 2, dtype=torch.bfloat16), block=(32, 32)
        ),
        "fp8 for each row": fp8((24, 64), scales_of(24, 1, dtype=torch.float32), name="scale"),
        "fp8 for all": fp8((24, 64), scales_of(1, dtype=torch.bfloat16)),
        "fp8 with 5 bits of exponent": fp8(
            (24, 64), scales_of(1, dtype=torch.float32), dtype=torch.float8_e5m2
        ),
        "fp8 with exponents for 32": fp8(
            (24, 64), torch.randint(110, 130, (24, 2), generator=random).to(torch.uint8)
        ),
        "compressed-tensors 4 bits, groups of 128": pack_quantized(4, 128),
        "compressed-tensors 4 bits, not symmetric": pack_quantized(4, 32, symmetric=False),
        "compressed-tensors 4 bits, rows": pack_quantized(4, None),
        "compressed-tensors 8 bits, groups of 64": pack_quantized(8, 64),
        "compressed-tensors 8 bits, rows, not symmetric": pack_quantized(
            8, None, symmetric=False, inputs=96
        ),
        "compressed-tensors 3 bits, groups of 32": pack_quantized(
            3, 32, symmetric=False, outputs=32
        ),
        "compressed-tensors 4 bits, act-order": pack_quantized(4, 32, ordered=False),
        "compressed-tensors int8, rows": naive(
            "int-quantized", signed_bytes(24, 96), scales_of(24, 1, dtype=torch.bfloat16), channel
        ),
        "compressed-tensors int8, for all": naive(
            "naive-quantized",
            signed_bytes(24, 64),
            scales_of(1, dtype=torch.bfloat16),
            {**channel, "strategy": "tensor"},
        ),
        "compressed-tensors int8, not symmetric": naive(
            "naive-quantized",
            signed_bytes(24, 64),
            scales_of(24, 1, dtype=torch.float16),
            {**channel, "symmetric": False},
            signed_bytes(24, 1),
        ),
        "compressed-tensors fp8, rows": naive(
            "float-quantized", byte_floats(24, 64), scales_of(24, 1, dtype=torch.bfloat16), floats
        ),
        "compressed-tensors fp8, for all": naive(
            "float-quantized",
            byte_floats(24, 64),
            scales_of(1, dtype=torch.float32),
            {**floats, "strategy": "tensor"},
        ),
        "compressed-tensors fp8, groups of 32": naive(
            "naive-quantized",
            byte_floats(24, 64),
            scales_of(24, 2, dtype=torch.bfloat16),
            {**floats, "strategy": "group", "group_size": 32},
        ),
        "compressed-tensors fp8, in blocks": naive(
            "float-quantized",
            byte_floats(64, 96),
            scales_of(2, 3, dtype=torch.bfloat16),
            {**floats, "strategy": "block", "block_structure": [32, 32]},
        ),
        "compressed-tensors mxfp4": float_pairs(32),
        "compressed-tensors nvfp4": float_pairs(16),
        "bitnet that multiplies": bitnet("autobitlinear"),
        "bitnet that divides": bitnet("bitlinear"),
        "compressed-tensors mxfp8": naive(
            "mxfp8-quantized",
            byte_floats(24, 64),
            torch.randint(110, 130, (24, 2), generator=random).to(torch.uint8),
            {**floats, "strategy": "group", "group_size": 32},
        ),
        "compressed-tensors 5 bits, groups of 64": pack_quantized(5, 64, inputs=128, outputs=32),
        "compressed-tensors 6 bits, rows": pack_quantized(6, None, inputs=128, outputs=32),
    }


if __name__ == "__main__":
    path = ROOT / "test/golden/formats.json"
    path.write_text(json.dumps(cases(), indent=2) + "\n")
    subprocess.run([ROOT / "node_modules/.bin/biome", "format", "--write", path], check=True)
