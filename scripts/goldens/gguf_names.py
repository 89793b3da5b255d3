"""Writes test/golden/models/gguf-names.json with gguf-py 0.19.0: the names that llama.cpp's converter gives to the
tensors of our tiny models. After scripts/goldens/models.py.

    python scripts/goldens/gguf_names.py
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
    "bitnet": "bitnet",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "ernie4_5": "ernie4_5",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "gemma": "gemma",
    "glm": "chatglm",
    "glm4": "glm4",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "gpt_neox-sequential": "gptneox",
    "hunyuan_v1_dense": "hunyuan-dense",
    "internlm2": "internlm2",
    "minicpm": "minicpm",
    "mistral3": "mistral3",
    "nemotron": "nemotron",
    "olmo-transformers": "olmo",
    "phi": "phi2",
    "plamo": "plamo",
    "plamo3": "plamo3",
    "qwen": "qwen",
    "qwen2_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl",
    "seed_oss": "seed_oss",
    "stablelm": "stablelm",
    "stablelm-parallel": "stablelm",
    "starcoder2-window": "starcoder2",
    "xverse": "xverse",
}
# MLX's names -> the authors', which the converter reads.
AUTHORS = {
    "gpt2": {"model.": "transformer."},
    "gpt_neox-sequential": {
        "model.h.": "gpt_neox.layers.",
        "model.embed_out": "embed_out",
        "model.": "gpt_neox.",
    },
    "mistral3": {"language_model.": ""},
    "qwen2_vl": {"language_model.": ""},
    "qwen3_vl": {"language_model.": ""},
}


def main():
    goldens = json.loads((FOLDER / "goldens.json").read_text())
    architectures = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    families = {}
    for case, architecture in FAMILIES.items():
        known = gguf.get_tensor_name_map(architectures[architecture], 8)
        names = {}
        for name in goldens[case]["tensors"]:
            authors = name
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
