"""Writes test/golden/models/gguf-names.json with the gguf-py of llama.cpp's repository at b21e4de: the names that its
converter gives to the tensors of our tiny models. PyPI's 0.19.0 has the same names and lacks some architectures. After
scripts/goldens/models.py.

    PYTHONPATH=<llama.cpp>/gguf-py python scripts/goldens/gguf_names.py
    node_modules/.bin/biome check --write test/golden/models
"""

import json
import pathlib
import re
import sys

# The package, and not the script beside this one.
sys.path.pop(0)

import gguf

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test/golden/models"

# Tiny model -> architecture of GGUF.
FAMILIES = {
    "afmoe": "afmoe",
    "apertus": "apertus",
    "bailing_moe": "bailingmoe2",
    "bailing_moe-softmax": "bailingmoe",
    "bailing_moe_v3": "bailingmoe3",
    "bitnet": "bitnet",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "dbrx": "dbrx",
    "deepseek": "deepseek",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "exaone_moe": "exaone-moe",
    "falcon_h1-gated": "falcon-h1",
    "falcon_h1-untied": "falcon-h1",
    "falcon_mamba": "mamba",
    "gemma": "gemma",
    "gemma3n-unclipped": "gemma3n",
    "gemma4_text": "gemma4",
    "gemma4_text-experts": "gemma4",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "gpt_neox-sequential": "gptneox",
    "gpt_oss-unscaled": "gpt-oss",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "granitemoehybrid-dense": "granitehybrid",
    "hunyuan-shared": "hunyuan-moe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "internlm2": "internlm2",
    "jamba": "jamba",
    "kimi_k3": "kimi-k3",
    "kimi_linear": "kimi-linear",
    "laguna-xs": "laguna",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "llama4-scout": "llama4",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "mellum": "mellum",
    "mimo_v2_flash": "mimo2",
    "minicpm": "minicpm",
    "minicpm3": "minicpm3",
    "minimax": "minimax-m2",
    "mistral3": "mistral3",
    "mistral4": "mistral4",
    "mixtral": "llama",
    "muse_glimmer": "muse-glimmer",
    "nanbeige": "nanbeige",
    "nemotron": "nemotron",
    "nemotron-nas-deci": "deci",
    "nemotron_h": "nemotron_h_moe",
    "nemotron_h-dense": "nemotron_h",
    "nemotron_h-super": "nemotron_h_moe",
    "olmo-transformers": "olmo",
    "olmoe": "olmoe",
    "openelm": "openelm",
    "phi": "phi2",
    "phimoe-mini": "phimoe",
    "plamo": "plamo",
    "plamo2": "plamo2",
    "plamo3": "plamo3",
    "qwen": "qwen",
    "qwen2_moe": "qwen2moe",
    "qwen2_vl": "qwen2vl",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_next-experts": "qwen3next",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "rwkv7": "rwkv7",
    "seed_oss": "seed_oss",
    "stablelm": "stablelm",
    "stablelm-parallel": "stablelm",
    "starcoder2-window": "starcoder2",
    "step3p5": "step35",
    "talkie": "talkie",
    "xverse": "xverse",
}
# MLX's names -> the authors', which the converter reads.
AUTHORS = {
    "deepseek_v2": {"embed_q": "k_b_proj", "unembed_out": "v_b_proj"},
    "deepseek_v3": {"embed_q": "k_b_proj", "unembed_out": "v_b_proj"},
    "mistral4": {"embed_q": "k_b_proj", "unembed_out": "v_b_proj"},
    "bailing_moe_v3": {
        "attention.embed_q": "self_attn.k_b_proj",
        "attention.unembed_out": "self_attn.v_b_proj",
    },
    "kimi_k3": {
        "language_model.": "",
        "embed_q": "k_b_proj",
        "unembed_out": "v_b_proj",
        "mlp.routed": "block_sparse_moe.routed",
    },
    "kimi_linear": {"embed_q": "k_b_proj", "unembed_out": "v_b_proj", "_conv.conv.": "_conv1d."},
    "gpt2": {"model.": "transformer."},
    "gpt_neox-sequential": {
        "model.h.": "gpt_neox.layers.",
        "model.embed_out": "embed_out",
        "model.": "gpt_neox.",
    },
    "bailing_moe": {"mlp.gate.gate_proj.": "mlp.gate."},
    "bailing_moe-softmax": {"mlp.gate.gate_proj.": "mlp.gate."},
    "mistral3": {"language_model.": ""},
    "nemotron-nas-deci": {"self_attn.linear.": "self_attn.linear_attn."},
    "plamo2": {
        "dt_norm_weight": "dt_norm.weight",
        "B_norm_weight": "B_norm.weight",
        "C_norm_weight": "C_norm.weight",
        "q_weight": "q.weight",
        "k_weight": "k.weight",
    },
    "qwen2_vl": {"language_model.": ""},
    "qwen3_5": {"language_model.": ""},
    "qwen3_5_moe": {"language_model.": ""},
    "qwen3_vl": {"language_model.": ""},
    "qwen3_vl_moe": {"language_model.": ""},
    "rwkv7": {
        ".attn.g_norm.": ".attention.ln_x.",
        ".ffn_norm.": ".ln2.",
        ".attn_norm.": ".attention_norm.",
        ".attn.": ".attention.",
        ".ffn.": ".feed_forward.",
        "_lora.lora.0.weight": "1.weight",
        "_lora.lora.2.weight": "2.weight",
        "_lora.lora.2.bias": "0.weight",
    },
    "step3p5": {
        "mlp.gate.gate.": "moe.gate.",
        "mlp.gate.router_bias": "moe.router_bias.bias",
        "mlp.experts.": "moe.",
        "mlp.share_expert.": "share_expert.",
    },
    "gemma3n-unclipped": {
        "language_model.": "",
        "correct_output_scale": "correct_output_scale.weight",
    },
    "gemma4_text": {"layer_scalar": "layer_scalar.weight"},
    "gemma4_text-experts": {
        "layer_scalar": "layer_scalar.weight",
        "experts.switch_glu.": "experts.",
    },
    "laguna-xs": {"mlp.gate.proj.": "mlp.gate."},
    "llama4-scout": {"language_model.": ""},
}


def main():
    oracles = [FOLDER / "goldens.json", FOLDER.parent / "authors/tiny-models.json"]
    goldens = {name: golden for path in oracles for name, golden in json.loads(path.read_text()).items()}
    architectures = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    families = {}
    for case, architecture in FAMILIES.items():
        known = gguf.get_tensor_name_map(architectures[architecture], 8)
        names = {}
        for name in goldens[case]["tensors"]:
            authors = name.replace(".switch_mlp.", ".experts.")
            authors = authors.replace("e_score_correction_bias", "e_score_correction.bias")
            authors = authors.replace("expert_bias", "expert_bias.bias")
            authors = authors.replace(".dt_bias", ".dt_proj.bias")
            for before, after in AUTHORS.get(case, {}).items():
                authors = authors.replace(before, after, 1)
            found = known.get_name(authors, try_suffixes=(".weight", ".bias"))
            # What the converter makes of other tensors, the test does by itself.
            if found:
                number = r"(?<=\.)\d+(?=\.)"
                names[re.sub(number, "N", name, count=1)] = re.sub(number, "N", found, count=1)
        families[case] = {"architecture": architecture, "names": names}
    (FOLDER / "gguf-names.json").write_text(json.dumps(families))


main()
