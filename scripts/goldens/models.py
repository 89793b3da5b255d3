"""Writes test/golden/models/goldens.json with mlx-lm 0.32.2: what our architectures must give.

    python scripts/goldens/models.py [name ...]    (all cases of configs.json, or these)
    node_modules/.bin/biome check --write test/golden/models

Of each tiny model: its tensors' shapes, the seed of its weights, a prompt, some of the prompt's
logits, and the tokens that greedy decoding adds to it. The weights follow from the seed, here and in
src/self-test/tiny-weights.ts. A seed is good if no step of the decoding is a close call.
"""

import importlib
import json
import math
import pathlib
import sys
import types

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test/golden/models"
# mlx-lm's files, with which the table of docs/models.md is made.
LISTED = json.loads((FOLDER.parents[2] / "scripts/mlx-lm-files.json").read_text())
PROMPT_TOKENS = 40
GREEDY_TOKENS = 64
# Prompt positions of which a few logits are kept, beside all of the last one.
SAMPLED_POSITIONS = [0, 13, 27]
SAMPLED_LOGITS = 16
MIN_GAP = 1e-3
MIN_DISTINCT = 12
# Whose norms are stored as their distance from 1.
NORMS_FROM_ONE = ["gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "plamo3"]
# Of the names of embeddings.
EMBEDDINGS = ["embed_tokens", "wte.", "wpe.", "embed_in.", "tok_embeddings.", "token_embeddings."]
EMBEDDINGS += ["model.embed.", "model.embedding."]

mx.set_default_device(mx.cpu)

# Embeddings packed as floats would be looked up in bfloat16, whatever the model computes in.
dequantize = mx.dequantize
mx.dequantize = lambda *args, **named: dequantize(*args, **{"dtype": mx.float32, **named})

# mlx-lm's OLMo asks for a package that it does not use.
sys.modules["hf_olmo"] = types.ModuleType("hf_olmo")

# mlx-lm 0.32.2 names an argument that MLX 0.32.2 does not have yet.
gather_qmm = mx.gather_qmm
mx.gather_qmm = lambda *args, global_scale=None, **named: gather_qmm(*args, **named)


def fnv1a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def uniform(key, count):
    """Numbers in [-1, 1), multiples of 2^-23: a hash of their index, seeded by the key."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(fnv1a(key))
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        x = x ^ (x >> np.uint32(16))
    return ((x >> np.uint32(8)).astype(np.float64) / 2**23 - 1).astype(np.float32)


def values(case, seed, name, shape):
    kind = name.split(".")[-1]
    gain = math.prod(gain for part, gain in case.get("gains", {}).items() if part in name)
    center, reach = 0.0, 0.3
    if kind == "weight" and len(shape) > 1:
        reach = math.sqrt(3 / shape[-1])
        reach = 0.5 if any(part in name for part in EMBEDDINGS) else reach * 1.5
    elif kind == "weight" and case["config"]["model_type"] not in NORMS_FROM_ONE:
        center = 1.0
    elif kind == "sinks":
        reach = 2.0
    center = next((own for part, own in case.get("centers", {}).items() if part in name), center)
    numbers = uniform(f"{seed}/{name}", math.prod(shape)) * np.float32(reach * gain)
    return (numbers + np.float32(center)).reshape(shape)


class Windowed(nn.Module):
    """A layer with a window, for architectures whose windows mlx-lm leaves out."""

    def __init__(self, layer, window):
        super().__init__()
        self.layer, self.window, self.use_sliding = layer, window, False
        self.full_attn = False

    def __call__(self, x, mask=None, cache=None):
        mask = create_causal_mask(x.shape[1], cache.offset, window_size=self.window)
        return self.layer(x, mask, cache)


replaced = []


def replace_parts(case, arch):
    """What the authors have and mlx-lm does not, or not on a CPU: its names -> those of mlx.nn."""
    while replaced:
        setattr(*replaced.pop())
    for name, other in case.get("oracle_uses", {}).items():
        owner = arch if hasattr(arch, name) else nn
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, added_mask if other == "added_mask" else getattr(nn, other))


def added_mask(h, cache):
    """What mlx-lm's OLMo adds to scores, where it expects an array."""
    seen = create_causal_mask(h.shape[1], cache.offset)
    return mx.where(seen, 0.0, -math.inf)


def build(case, seed):
    # A copy, since mlx-lm writes to it; with numbers that mlx-lm does not take as the authors do.
    config = json.loads(json.dumps({**case["config"], **case.get("oracle_config", {})}))
    key = (config["model_type"], *config.get("architectures", []))
    others = LISTED["others"] | mlx_lm.utils.MODEL_REMAPPING
    renamed = others.get(key[0], key[0])
    module = mlx_lm.utils.MODEL_ARCHITECTURE_REMAPPING.get(key, renamed)
    arch = importlib.import_module(f"mlx_lm.models.{module}")
    replace_parts(case, arch)
    model = arch.Model(arch.ModelArgs.from_dict(config))
    shapes = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}
    if case.get("tied"):
        shapes = {name: shape for name, shape in shapes.items() if "lm_head" not in name}
    weights = {name: mx.array(values(case, seed, name, shape)) for name, shape in shapes.items()}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()))
    if quantization := case.get("quantization"):
        keys = ("group_size", "bits", "mode")
        defaults = {key: quantization[key] for key in keys if key in quantization}

        def predicate(path, layer):
            if not hasattr(layer, "to_quantized") or case.get("quantize_only", "") not in path:
                return False
            if layer.weight.shape[-1] % defaults["group_size"] != 0:
                return False
            return quantization.get(path, True)

        if fused := getattr(arch, "FusedLinear", None):  # It takes no mode.
            quantize = vars(fused).get("affine", fused.to_quantized)
            fused.affine = quantize
            fused.to_quantized = lambda self, mode=None, **named: quantize(self, **named)
        nn.quantize(model, **defaults, class_predicate=predicate)
    check_layout(case, model)
    for index, window in enumerate(case.get("oracle_windows", [])):
        if window is not None:
            model.layers[index] = Windowed(model.layers[index], window)
    return model, shapes


def check_layout(case, model):
    """The authors' layout, as our test writes it, is what mlx-lm makes the same weights of."""
    layout = case.get("layout", "stacked")
    weights = dict(tree_flatten(model.parameters()))
    if isinstance(layout, dict) and case.get("oracle_cannot_read"):
        return
    if isinstance(layout, dict):
        check_authors(case, model, weights, layout)
        return
    original = {}
    for name, value in weights.items():
        if layout in ("separate", "joint") and ".switch_mlp." in name:
            for expert in range(value.shape[0]):
                original[name.replace("switch_mlp", f"experts.{expert}")] = value[expert]
        elif layout == "joint" and ".unembed_out." in name:
            keys = weights[name.replace("unembed_out", "embed_q")].swapaxes(1, 2)
            both = mx.concatenate([keys, value], axis=1)
            original[name.replace("unembed_out", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
        elif layout == "joint" and ".embed_q." in name:
            continue
        elif layout == "blocks" and ".experts.up_proj." in name:
            continue
        elif layout == "blocks" and ".experts." in name:
            kind = name.split(".")[-1]
            if "gate_proj" in name:
                up = weights[name.replace("gate_proj", "up_proj")]
                value = mx.stack([value, up], axis=2).reshape(value.shape[0], -1, *value.shape[2:])
            if kind == "weight":
                value = value.view(mx.uint8).reshape(*value.shape[:2], -1, 16)
            suffix = {"weight": "_blocks", "scales": "_scales", "bias": "_bias"}[kind]
            original[name.replace("gate_proj", "gate_up_proj").replace(f".{kind}", suffix)] = value
        else:
            original[name] = value
    if layout == "stacked":
        return
    sanitized = model.sanitize(original)
    assert sanitized.keys() == weights.keys(), case["name"]
    assert all(mx.array_equal(sanitized[name], weights[name]) for name in weights), case["name"]


def check_authors(case, model, weights, layout):
    sanitized = model.sanitize(in_layout(weights, layout))
    assert sanitized.keys() == weights.keys(), case["name"]
    for name, value in weights.items():
        # mlx-lm leaves out the factors of a few.
        if not any(part in name for part in case.get("oracle_leaves_out", [])):
            assert mx.array_equal(sanitized[name], value), (case["name"], name)


def in_layout(weights, layout):
    """All that differs in the authors' files, as test/support/authors-layout.ts writes it."""
    original = {}
    for name, value in weights.items():
        if value.ndim == 3 and value.shape[2] == 1:
            value = value.swapaxes(1, 2)
        if any(part in name for part in layout.get("fromOne", [])):
            value = value - 1
        for part, factor in layout.get("factors", {}).items():
            if part in name:
                rows = factor if isinstance(factor, list) else [[value.shape[0], factor]]
                by_row = np.concatenate([np.full((count, 1), each) for count, each in rows])
                value = value / mx.array(by_row.astype(np.float32))
        original[name] = value
    for gate, up, both in layout.get("joined", []):
        for name in [name for name in original if gate in name]:
            halves = [original.pop(name), original.pop(name.replace(gate, up))]
            original[name.replace(gate, both)] = mx.concatenate(halves, axis=-2)
    for name in original:
        if any(part in name for part in layout.get("transposed", [])):
            original[name] = original[name].swapaxes(-2, -1)
    for part, parts in layout.get("parted", {}).items():
        for name in [name for name in original if part in name]:
            for own, value in zip(parts, mx.split(original.pop(name), len(parts), axis=0)):
                original[name.replace(part, own)] = value
    for before, after in layout.get("names", {}).items():
        original = {name.replace(before, after, 1): original[name] for name in original}
    if where := layout.get("separate"):
        where = "experts" if where is True else where
        for name in [name for name in original if ".switch_mlp." in name]:
            for expert, value in enumerate(original.pop(name)):
                original[name.replace("switch_mlp", f"{where}.{expert}")] = value
    for part, transposed in layout.get("together", {}).items():
        first = f".experts.0.{part}.weight"
        for name in [name for name in original if name.endswith(first)]:
            prefix, rows = name[: -len(first)], []
            while (each := f"{prefix}.experts.{len(rows)}.{part}.weight") in original:
                rows.append(original.pop(each).T if transposed else original.pop(each))
            original[f"{prefix}.experts.mlp.{part}"] = mx.concatenate(rows, axis=0)
    if layout.get("joint"):
        for name in [name for name in original if ".unembed_out." in name]:
            keys = original.pop(name.replace("unembed_out", "embed_q")).swapaxes(1, 2)
            both = mx.concatenate([keys, original.pop(name)], axis=1)
            original[name.replace("unembed_out", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
    return original


def greedy(model, windowed, prompt):
    cache = [KVCache() for _ in model.layers] if windowed else make_prompt_cache(model)
    logits = model(mx.array([prompt]), cache=cache)[0]
    first, last, gap, tokens = logits, logits[-1], math.inf, []
    for _ in range(GREEDY_TOKENS):
        order = np.sort(np.array(last))
        gap = min(gap, float(order[-1] - order[-2]))
        tokens.append(int(mx.argmax(last)))
        last = model(mx.array([[tokens[-1]]]), cache=cache)[0, -1]
    return np.array(first), tokens, gap


def rounded(numbers):
    return [round(float(number), 6) for number in numbers]


def golden(case, build=build, greedy=greedy):
    prompt = [int((x + 1) * 128) for x in uniform(f"prompt/{case['name']}", PROMPT_TOKENS)]
    windowed = "oracle_windows" in case
    for seed in range(1, 50):
        model, shapes = build(case, seed)
        logits, tokens, gap = greedy(model, windowed, prompt)
        distinct = len(set(tokens))
        good = gap > MIN_GAP and distinct >= MIN_DISTINCT
        found = f"seed {seed} gap {gap:.1e} distinct {distinct} std {logits.std():.2f}"
        print(f"{case['name']:28} {found}", flush=True)
        if good:
            break
    else:
        raise SystemExit(f"{case['name']}: no good seed")
    return {
        "seed": seed,
        **({} if "extends" in case else {"tensors": shapes}),
        "prompt": prompt,
        "last": rounded(logits[-1]),
        "sampled": [[at, rounded(logits[at][:SAMPLED_LOGITS])] for at in SAMPLED_POSITIONS],
        "greedy": tokens,
    }


def check_files():
    """The table of docs/models.md is made of a list of mlx-lm's files: it has them all."""
    assert LISTED["version"] == mlx_lm.__version__, f"the list is of mlx-lm {LISTED['version']}"
    there = {path.stem for path in pathlib.Path(mlx_lm.models.__file__).parent.glob("*.py")}
    differing = sorted(there ^ LISTED["files"].keys())
    assert not differing, f"scripts/mlx-lm-files.json and mlx-lm differ in {differing}"
    assert LISTED["renamed"] == mlx_lm.utils.MODEL_REMAPPING, "mlx-lm has other names for some"


def read_cases():
    cases = json.loads((FOLDER / "configs.json").read_text())
    by_name = {case["name"]: case for case in cases}
    return [{**by_name[case["extends"]], **case} if "extends" in case else case for case in cases]


def write(path, oracle, make):
    """The goldens of an oracle's cases, or of those that the command names."""
    goldens = json.loads(path.read_text()) if len(sys.argv) > 1 else {}
    for case in read_cases():
        if case.get("oracle") == oracle and (len(sys.argv) == 1 or case["name"] in sys.argv[1:]):
            goldens[case["name"]] = make(case)
            path.write_text(json.dumps(goldens))


def main():
    check_files()
    write(FOLDER / "goldens.json", None, golden)


if __name__ == "__main__":
    main()
