"""Writes test/golden/authors/tiny-models.json and longrope.json with transformers 5.23.0 (torch 2.15.0, mlx-lm 0.32.2).

    python scripts/goldens/authors_fixes.py [name ...]    (all such cases of configs.json, or these)
    node_modules/.bin/biome check --write test/golden/authors

For the tiny models that mlx-lm computes differently from the authors: the cases of test/golden/models/configs.json
with "oracle": "transformers". mlx-lm only holds their weights; transformers reads them in the authors' layout and
computes in float32. Greedy decoding recomputes the whole text for each token, as transformers' own `generate` does
where longrope changes its factors.
"""

import json
import math
import pathlib
import tempfile
from functools import partial

import mlx.core as mx
import models
import numpy as np
import torch
import transformers
from mlx.utils import tree_flatten
from safetensors.numpy import save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Special tokens within the vocabulary, and what mlx-lm always has but transformers only on request.
CONFIG = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_mamba_kernels": False}
MORE = {"phimoe": {"attention_bias": True, "lm_head_bias": True}}
CASES = models.read_cases()


def plain_weights(model):
    """In float32, by mlx-lm's names."""
    stored = dict(tree_flatten(model.parameters()))
    modules = dict(model.named_modules())
    weights = {}
    for name, value in stored.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and f"{module}.scales" in stored:
            scales, biases = stored[f"{module}.scales"], stored[f"{module}.biases"]
            group, bits = modules[module].group_size, modules[module].bits
            value = mx.dequantize(value, scales, biases, group, bits)
        if kind not in ("scales", "biases"):
            weights[name] = value
    return weights


def build(case, seed):
    holder, shapes = models.build({**case, "layout": "stacked"}, seed)
    config = {**case["config"], **CONFIG, **MORE.get(case["config"]["model_type"], {})}
    base = case.get("extends", case["name"])
    layouts = [each.get("layout") for each in CASES if each.get("extends") == base]
    layout = next((each for each in layouts if isinstance(each, dict)), {})
    weights = models.in_layout(plain_weights(holder), layout)
    arrays = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    wrong = {kind: names for kind, names in report.items() if names}
    assert not wrong, (case["name"], wrong)
    return model.eval(), shapes


def forward(model, tokens):
    for module in model.modules():
        # transformers 5 gives PhiMoE the short factors at any length; transformers 4 and Microsoft's code do not.
        if type(module).__name__ == "PhimoeRotaryEmbedding" and module.rope_type == "longrope":
            module.rope_init_fn = partial(ROPE_INIT_FUNCTIONS["longrope"], seq_len=len(tokens))
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def greedy(model, _, prompt):
    first = forward(model, prompt)
    last, gap, tokens = first[-1], math.inf, []
    for _ in range(models.GREEDY_TOKENS):
        order = np.sort(last)
        gap = min(gap, float(order[-1] - order[-2]))
        tokens.append(int(np.argmax(last)))
        last = forward(model, prompt + tokens)[-1]
    return first, tokens, gap


def log_probabilities(case, golden):
    """Of the greedy tokens, before and beyond longrope's original length."""
    model, _ = build(case, golden["seed"])
    texts = [golden["prompt"] + golden["greedy"][:i] for i in range(models.GREEDY_TOKENS)]
    rows = torch.stack([torch.tensor(forward(model, text)[-1]) for text in texts])
    chosen = rows.log_softmax(-1)[range(len(texts)), golden["greedy"]]
    return models.rounded(chosen)


def main():
    transformers.logging.set_verbosity_error()
    folder = models.FOLDER.parent / "authors"
    path = folder / "tiny-models.json"
    models.write(path, "transformers", partial(models.golden, build=build, greedy=greedy))
    goldens = json.loads(path.read_text())
    scaled = [case for case in CASES if case["name"] in ("phi3", "phimoe")]
    rows = {case["name"]: log_probabilities(case, goldens[case["name"]]) for case in scaled}
    (folder / "longrope.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
