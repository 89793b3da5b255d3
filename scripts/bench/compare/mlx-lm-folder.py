"""Writes the default model as a folder for mlx_lm.server: its weights in float32, and its tokenizer.

    python scripts/bench/compare/mlx-lm-folder.py <SmolLM2-135M-Instruct.Q4_1.gguf> <folder>

The tokenizer has no end token, so that every answer is as long as it may be.
"""

import json
import pathlib
import sys

from gguf import GGUFReader

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "goldens"))
from smollm2 import hugging_face, tokenizer_of

reader, folder = GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2])
folder.mkdir(parents=True)
hugging_face(reader, folder)
tokenizer_of(reader).save(str(folder / "tokenizer.json"))
config = {"tokenizer_class": "PreTrainedTokenizerFast"}
(folder / "tokenizer_config.json").write_text(json.dumps(config))
