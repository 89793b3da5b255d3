"""Writes test/golden/smollm2/tokens.json: what mlx-lm 0.32.2 answers greedily to 24 prompts.

    python scripts/goldens/smollm2.py <SmolLM2-135M-Instruct.Q4_1.gguf>

The GGUF file becomes a Hugging Face folder of float32, in which mlx-lm decodes one prompt after the
other. At every token the best logit is ahead of the next by more than another order of summation can
turn; a prompt that comes to a near tie gives way to the next one.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

# Beside this file lies another of gguf's name.
HERE = pathlib.Path(__file__).resolve().parent
sys.path = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]

import mlx.core as mx
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = HERE.parents[1]
TARGET = ROOT / "test/golden/smollm2/tokens.json"
PROMPTS = 24
TOKENS = 64
GAP = 1e-3

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

STORY = (
    "The lighthouse had stood on the cliff for two hundred years, and for the last thirty of them "
    "Marta had kept its lamp. Every evening she climbed the 112 steps with a can of oil, although "
    "the lamp had been electric since before she was born; the oil was for the hinges of the door, "
    "which the salt ate faster than any other metal on the coast. "
)

# Some more than are needed.
TEXTS = [
    STORY,
    STORY * 4 + "One winter night the hinges were silent, and she knew that",
    "The",
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "In 1969, the first humans landed on the Moon. The mission was called",
    "Water boils at 100 degrees Celsius at sea level, but on top of a high mountain",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    '{"name": "Alice", "age": 30, "city": "',
    "1, 2, 3, 4, 5,",
    "<html>\n<head>\n<title>",
    "The three laws of motion were first written down by Isaac Newton. The first law says that",
    "Ingredients: flour, sugar, butter, eggs.\n\nStep 1:",
    "Die Hauptstadt von Deutschland ist",
    "SELECT name, age FROM users WHERE",
    "Q: Why is the sky blue?\nA:",
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals,",
    "Photosynthesis is the process by which plants",
    "import numpy as np\n\ndef softmax(x):\n",
    "Roses are red,\nviolets are blue,\n",
    "The quick brown fox jumps over",
    "The largest planet of the solar system is",
    "To be, or not to be, that is the question:\n",
    "A train leaves the station at 9 o'clock and travels at 80 kilometres an hour. At 11 o'clock",
    "Les Misérables est un roman de",
]
CHATS = [
    "What is the capital of Italy?",
    "Write a haiku about the sea.",
    "Explain to a child how a rainbow is made, in two sentences.",
    "List five prime numbers.",
]


def unpaired(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF has the two halves of each head of Q and K interleaved row by row."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hugging_face(reader: GGUFReader, folder: pathlib.Path) -> None:
    fields = {name: field.contents() for name, field in reader.fields.items()}
    value = lambda key: fields[f"llama.{key}"]
    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        *block, part, kind = tensor.name.split(".")
        weight = dequantize(tensor.data, tensor.tensor_type)
        if part == "attn_q":
            weight = unpaired(weight, heads)
        if part == "attn_k":
            weight = unpaired(weight, kv_heads)
        layer = f"model.layers.{block[1]}." if block else ""
        weights[f"{layer}{NAMES[part]}.{kind}"] = mx.array(np.ascontiguousarray(weight))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = {
        "model_type": "llama",
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "vocab_size": value("vocab_size"),
        "max_position_embeddings": value("context_length"),
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def tokenizer_of(reader: GGUFReader) -> Tokenizer:
    field = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()
    tokens = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, field("token_type")) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


def greedy(model, prompt: list[int]) -> tuple[list[int], float]:
    """The tokens, and the least lead of one over the next best."""
    cache = make_prompt_cache(model)
    tokens, lead, step = [], float("inf"), prompt
    while len(tokens) < TOKENS:
        logits = model(mx.array([step]), cache=cache)[0, -1]
        second, first = mx.sort(logits)[-2:].tolist()
        lead = min(lead, first - second)
        tokens.append(mx.argmax(logits).item())
        step = tokens[-1:]
    return tokens, lead


if __name__ == "__main__":
    reader = GGUFReader(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        hugging_face(reader, pathlib.Path(folder))
        model, _ = load_model(pathlib.Path(folder))
    assert model.model.norm.weight.dtype == mx.float32
    tokenizer = tokenizer_of(reader)
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n".format
    texts = [chat(text) for text in CHATS] + TEXTS
    answers, least = [], float("inf")
    for text in texts:
        prompt = tokenizer.encode(text).ids
        tokens, lead = greedy(model, prompt)
        if lead <= GAP:
            print(f"a near tie ({lead}) after {text[:40]!r}")
            continue
        least = min(least, lead)
        answers.append({"prompt": prompt, "tokens": tokens})
        print(len(prompt), lead, repr(tokenizer.decode(tokens))[:60], flush=True)
        if len(answers) == PROMPTS:
            break
    assert len(answers) == PROMPTS and max(len(answer["prompt"]) for answer in answers) >= 250
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(answers) + "\n")
    subprocess.run([ROOT / "node_modules/.bin/biome", "format", "--write", TARGET], check=True)
    print(f"{len(answers)} prompts; the least lead is {least}")
