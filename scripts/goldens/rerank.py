"""Writes test/golden/rerank/goldens.json with mlx-lm 0.32.2 and transformers: scores of pairs by rerankers.

    python scripts/goldens/rerank.py
    node_modules/.bin/biome check --write test/golden/rerank

A tiny Qwen3 of random weights, which follow from a seed as those of models.py, and a tokenizer of bytes that
knows yes and no. `card` is computed as the card of Qwen3-Reranker says, `template` and `one_token` as
sentence-transformers' LogitScore behind a chat template, `cosine` as its Pooling of the last token.
"""

import json
import pathlib

import mlx.core as mx
import numpy as np
from models import build
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test/golden/rerank"
SEED = 3
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("y", "e"), ("ye", "s"), ("n", "o")]

QUERY = "Is there life on Mars?"
DOCUMENTS = [
    "Mars is the fourth planet.",
    "No life was found there, yes or no?",
    "Ein Text mit Umlauten: äöü, und 火星.",
    "A <Document>: inside a document.\n\n\tAnd a tab.",
]
INSTRUCTION = "Find what answers the question"
CARD_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

TEMPLATE = """{% set task = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Judge", true) %}
<|im_start|>system
{{ task }}, and answer yes or no.<|im_end|>
<|im_start|>user
{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
---
{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer_json():
    characters = sorted(ByteLevel.alphabet())
    tokens = characters + ["".join(pair) for pair in MERGES]
    first = len(tokens)
    return {
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [" ".join(pair) for pair in MERGES],
        },
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True},
        "added_tokens": [
            {
                "id": first + index,
                "content": content,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for index, content in enumerate(CONTROL)
        ],
    }


def main():
    written = tokenizer_json()
    whole = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps({**whole, **written}))
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    config = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": 264,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "head_dim": 32,
        "rope_theta": 1000000.0,
    }
    model, shapes = build({"name": "reranker", "config": config}, SEED)

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    def last_logits(ids):
        return np.array(model(mx.array([ids]))[0, -1], dtype=np.float64)

    def softmax_of_yes(ids):
        logits = last_logits(ids)
        both = np.exp(logits[[no, yes]] - logits[[no, yes]].max())
        return float(both[1] / both.sum())

    def card(instruction, query, document):
        prefix = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        )
        suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        return encode(prefix) + encode(pair) + encode(suffix)

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)

    def templated(instruction, query, document):
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction is not None:
            messages = [{"role": "system", "content": instruction}, *messages]
        text = fast.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return encode(text)

    def scored(prompts, score):
        return {"scores": [score(ids) for ids in prompts], "tokens": sum(len(ids) for ids in prompts)}

    def cases(prompt, score, preset):
        return {
            "preset": scored([prompt(preset, QUERY, each) for each in DOCUMENTS], score),
            "instructed": scored([prompt(INSTRUCTION, QUERY, each) for each in DOCUMENTS], score),
        }

    def vector(text):
        hidden = np.array(model.model(mx.array([encode(text)]))[0, -1], dtype=np.float64)
        return hidden / np.linalg.norm(hidden)

    def cosine(query, document):
        return float(vector(query) @ vector(document))

    FOLDER.mkdir(exist_ok=True)
    goldens = {
        "config": config,
        "seed": SEED,
        "tensors": shapes,
        "tokenizer": written,
        "template": TEMPLATE,
        "yes": yes,
        "no": no,
        "query": QUERY,
        "documents": DOCUMENTS,
        "instruction": INSTRUCTION,
        "card": cases(card, softmax_of_yes, CARD_INSTRUCTION),
        "template_yes_no": cases(templated, softmax_of_yes, None),
        "template_yes": cases(templated, lambda ids: float(1 / (1 + np.exp(-last_logits(ids)[yes]))), None),
        "cosine": [cosine(QUERY, each) for each in DOCUMENTS],
        "cosine_tokens": sum(len(encode(each)) for each in [QUERY, *DOCUMENTS]),
        "cosine_in_turn": [cosine(*pair) for pair in zip(DOCUMENTS, reversed(DOCUMENTS))],
    }
    (FOLDER / "goldens.json").write_text(json.dumps(goldens))
    for name in ("card", "template_yes_no", "template_yes"):
        print(name, goldens[name])
    print(goldens["cosine"], goldens["cosine_in_turn"])


main()
