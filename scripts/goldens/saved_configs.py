"""Writes test/golden/authors/saved-configs.json with transformers: what it computes of configurations
as their authors publish them, and what its own save_pretrained makes of these.

    python scripts/goldens/saved_configs.py [case ...]    (all cases, or these)
    node_modules/.bin/biome check --write test/golden/authors

The cases are those of test/golden/models/configs.json, with some keys changed. Of each: both
configurations, names and shapes of the tensors that save_pretrained writes, and some logits in
float32. The weights follow from a seed (scripts/goldens/models.py).
"""

import dataclasses
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from models import FOLDER, rounded, uniform, values
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PATH = FOLDER.parent / "authors/saved-configs.json"
PROMPT = [int((x + 1) * 128) for x in uniform("prompt/saved-configs", 48)]
# Prompt positions of which a few logits are kept.
POSITIONS = [20, 47]
LOGITS = 16
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}

# A name in configs.json, and what makes it another case -> what changes there; None takes a key out.
UNCHANGED = """
llama llama-biases mistral qwen2 qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_5_moe
qwen3_vl_moe gemma gemma2 gemma4 gemma4_text-experts phi phi3-plain smollm3 granite granitemoe
olmo-transformers olmo2 olmo3 olmoe gpt_oss gpt2 gpt_neox gpt_bigcode gptj lfm2 lfm2_moe lfm2_vl
deepseek_v2 deepseek_v3 kimi_k25 kimi_linear glm glm4 glm4_moe glm4_moe_lite dots1 mixtral qwen2_moe
exaone_moe ernie4_5 ernie4_5_moe seed_oss cohere cohere2 starcoder2 stablelm nemotron helium apertus
hunyuan_v1_dense nanochat bitnet iquestcoder llava mistral4 dbrx mellum minimax_m2 falcon_h1
recurrent_gemma laguna-xs
"""
CASES = {name: {} for name in UNCHANGED.split()} | {
    # Keys whose absence means something else to mlx-lm.
    "afmoe": {"n_group": 1, "topk_group": 1, "mup_enabled": True, "route_scale": 2.8},
    "falcon_mamba": {"intermediate_size": 128},
    "hunyuan_v1_moe": {"head_dim": 16},
    "internlm3": {"head_dim": 16},
    "llama4_text": {"moe_layers": []},
    "longcat_flash": {"head_dim": 16},
    "mamba": {"intermediate_size": 128},
    "mistral3": {"text_config": {"head_dim": 16}},
    "nemotron_h": {"head_dim": 16},
    "nemotron_h-dense": {"head_dim": 16},
    "qwen3_5": {"tie_word_embeddings": True},
    # What transformers does not have, or not as published.
    "bailing_hybrid-v3": {"q_lora_rank": None, "head_dim": 16, "num_key_value_heads": 4},
    "exaone4": {"sliding_window_pattern": 4},
    "gemma4_text": {
        "layer_types": [SLIDING, SLIDING, FULL] * 2,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
    "gemma4_unified": {
        "text_config": {"vocab_size_per_layer_input": None, "hidden_size_per_layer_input": None}
    },
    "granitemoehybrid": {"mamba_n_groups": 1},
    "llama4": {"text_config": {"attn_temperature_tuning": True}},
    "llama4-scout": {"text_config": {"attn_temperature_tuning": True}},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "rope_theta": 5e6,
        "partial_rotary_factor": 0.334,
    },
    "minicpm3": {"rope_scaling": None},
    "ministral3": {"layer_types": None},
    "olmo_hybrid": {"linear_num_value_heads": 2},
    "phimoe": {"rope_scaling": None},
    "solar_open": {"first_k_dense_replace": 0},
    # In float32 transformers does not round the square root of the size as it does in bfloat16.
    "gemma3": {"text_config": {"hidden_size": 64, "vocab_size": 256, "rms_norm_eps": 1e-6}},
    "gemma3_text": {"hidden_size": 64},
    # Scalings of RoPE.
    "qwen3/attention_factor": {"rope_parameters": {**YARN, "attention_factor": 0.7}},
    "qwen3/mscale": {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.5}},
    "qwen3/mscale alone": {"rope_parameters": {**YARN, "mscale": 2.0}},
    "qwen3/mscale_all_dim alone": {"rope_parameters": {**YARN, "mscale_all_dim": 2.0}},
    "qwen3/original length of the model": {
        "rope_parameters": {"original_max_position_embeddings": None}
    },
}

# Keys that transformers reads without declaring them.
UNDECLARED = {"head_dim", "per_layer_config"}
# What sees and hears has no part in a text, and no tensor in the file.
TOWERS = ("visual", "vision", "audio", "multi_modal_projector", "mm_projector")
VISION = {"hidden_size": 16, "intermediate_size": 8, "image_size": 8, "patch_size": 4}
VISION |= {"num_hidden_layers": 1, "num_attention_heads": 1, "depth": 1, "num_heads": 1}
VISION |= {"out_hidden_size": 64, "num_position_embeddings": 4, "deepstack_visual_indexes": [0]}


def changed(config, change):
    config = dict(config)
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            config[key] = changed(config[key], value)
        elif value is None:
            config.pop(key, None)
        else:
            config[key] = value
    return config


def own_keys(config):
    """As if transformers had made the configuration: without the keys that it only keeps."""
    fields = {field.name for field in dataclasses.fields(config)} | UNDECLARED
    names = {getattr(config, "attribute_map", {}).get(name, name) for name in fields} | fields
    kept = {key: value for key, value in config.to_diff_dict().items() if key in names}
    if text := getattr(config, "text_config", None):
        kept["text_config"] = {"model_type": text.model_type, **own_keys(text)}
    return kept


def model_class(config):
    for auto in (AutoModelForImageTextToText, AutoModelForCausalLM):
        if type(config) in auto._model_mapping:
            found = auto._model_mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise SystemExit(f"there is no model of {type(config)}")


def is_text(name):
    return not any(tower in name for tower in TOWERS)


def golden(name, case):
    published = changed(case.get("file_config", case["config"]), CASES[name])
    kind = CONFIG_MAPPING[published["model_type"]]
    given = json.loads(json.dumps({**TOKENS, **published}))
    if "vision_config" in kind.sub_configs:
        given["vision_config"] = VISION
    config = kind.from_dict(own_keys(kind.from_dict(given)))
    make = model_class(config)
    with tempfile.TemporaryDirectory() as folder:
        make(config).save_pretrained(folder)
        saved = json.loads(pathlib.Path(folder, "config.json").read_text())
        path = pathlib.Path(folder, "model.safetensors")
        with safe_open(path, "pt") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}
        shapes = {key: shape for key, shape in shapes.items() if is_text(key)}
        arrays = {key: np.array(values(case, 1, key, shape)) for key, shape in shapes.items()}
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        save_file(tensors, path, metadata={"format": "pt"})
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        model, loading = make.from_pretrained(folder, output_loading_info=True, **options)
    missing = [key for key in loading["missing_keys"] if is_text(key)]
    assert not missing and not loading["unexpected_keys"], (missing, loading["unexpected_keys"])
    with torch.no_grad():
        logits = model.eval()(torch.tensor([PROMPT]), use_cache=False).logits[0].numpy()
    print(f"{name:36} {make.__name__:36} std {logits.std():.2f}", flush=True)
    by_shape = {}
    for key, shape in shapes.items():
        by_shape.setdefault(" ".join(map(str, shape)), []).append(key)
    left_out = ("transformers_version", "vision_config")
    return {
        "published": published,
        "saved": {key: value for key, value in saved.items() if key not in left_out},
        **({"gains": case["gains"]} if "gains" in case else {}),
        "tensors": {shape: " ".join(names) for shape, names in by_shape.items()},
        "logits": [[at, rounded(logits[at][:LOGITS])] for at in POSITIONS],
    }


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    all_cases = json.loads((FOLDER / "configs.json").read_text())
    by_name = {case["name"]: case for case in all_cases}
    goldens = json.loads(PATH.read_text())["cases"] if sys.argv[1:] else {}
    for name in sys.argv[1:] or CASES:
        case = by_name[name.split("/")[0]]
        goldens[name] = golden(name, {**by_name.get(case.get("extends"), {}), **case})
        PATH.write_text(json.dumps({"prompt": PROMPT, "cases": goldens}))


if __name__ == "__main__":
    main()
