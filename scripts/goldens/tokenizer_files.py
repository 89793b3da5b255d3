"""Writes test/golden/text/tiktoken.json, rwkv.json, sentence-piece-models.json and gguf-byte-level.json: what tiktoken and SentencePiece make of the
texts of text.py, with tokenizers in the files that models without a tokenizer.json bring. Needs tiktoken,
sentencepiece, rwkv and what text.py needs (PyPI).

    python scripts/goldens/tokenizer_files.py
    node_modules/.bin/biome check --write test/golden/text
"""

import base64
import importlib.util
import io
import tempfile
import unicodedata
from pathlib import Path

spec = importlib.util.spec_from_file_location("text", Path(__file__).resolve().parent / "text.py")
text = importlib.util.module_from_spec(spec)
spec.loader.exec_module(text)

import json
import re
import zlib

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

# As the Python code of these families has them.
HAN = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "tiktoken.model": HAN,
    "qwen.tiktoken": text.CL100K % "",
    "hy.tiktoken": text.CL100K % "",
    "tokenizer.model": text.CL100K % "{1,3}",
    "tekken.json": text.CASED % {"end": "", "digits": ""},
}
COMPOSED = ["qwen.tiktoken", "hy.tiktoken"]


def tiktoken_goldens(state):
    """The vocabulary is that of byte-level.json, each token with its id as its rank."""
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in state["model"]["vocab"].items()}
    goldens = {}
    for name, pattern in PATTERNS.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

        def encode(chunk):
            composed = unicodedata.normalize("NFC", chunk) if name in COMPOSED else chunk
            return encoding.encode_ordinary(composed)

        goldens[name] = text.golden(encode, encoding.decode)
    return goldens


def rwkv_golden(state):
    """The same vocabulary, in the file of RWKV."""
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    tokens = {bytes(byte_of[c] for c in token): i for token, i in state["model"]["vocab"].items()}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(f"{i + 1} {token!r} {len(token)}\n" for token, i in tokens.items()))
        file.flush()
        tokenizer = TRIE_TOKENIZER(file.name)
    return text.golden(tokenizer.encode, tokenizer.decode)


# A few of the replacements of NFKC, and some that are ours: with marks, of several characters, to nothing.
RULES = [("ﬁ", "fi"), ("Ａ", "A"), ("ｂ", "b"), ("　", " "), ("\u00a0", " "), ("①", "1"), ("…", "...")]
RULES += [("e\u0301", "é"), ("a\u0308", "ä"), ("\u200b", ""), ("\ufeff", ""), ("\t", " "), ("\n", " "), ("th", "þ"), ("the", "ð")]
RULES += [("👩", "W"), ("\ufb03", "ffi"), ("½", "1⁄2")]
MODELS = {
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "unigram with unknowns": {
        "model_type": "unigram",
        "byte_fallback": False,
        "add_dummy_prefix": False,
        "vocab_size": 700,
    },
    "bpe": {"model_type": "bpe", "byte_fallback": True},
    "bpe that keeps spaces": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
    },
}


def sentence_piece_model(options):
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        hexes = lambda s: " ".join(f"{ord(c):X}" for c in s)
        rules.write("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in RULES))
        rules.flush()
        rule = {} if "normalization_rule_name" in options else {"normalization_rule_tsv": rules.name}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.TRAINING),
            model_writer=model,
            character_coverage=0.98,
            user_defined_symbols=["<tool_call>", "<think>", "▁▁▁", "the"],
            control_symbols=["[INST]", "<|im_end|>"],
            minloglevel=2,
            **rule,
            **{"vocab_size": 800, **options},
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.normalization_rule_tsv = ""  # a temporary path
    proto = proto.SerializeToString()
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    # A NUL ends the text for SentencePiece. By lines and without runs of one letter, since it sums scores as 32-bit
    # floats, which decides between segmentations that are as good as each other.
    lines = lambda chunk: re.sub("\0|a{13,}", "", chunk).split("\n")
    crcs = [text.crc([i for line in lines(chunk) for i in processor.encode(line)]) for chunk in text.TEXTS]
    # An unknown token is left out of a text here, as other control tokens are. SentencePiece strips a mark from each
    # of several pieces at the start, which only a text with marks of its own has.
    decode = lambda line: processor.decode(processor.encode(line)).replace(" \u2047 ", "").lstrip(" ")
    decoded = ["\n".join(decode(line) for line in lines(chunk)) for chunk in text.TEXTS]
    head = lines(text.TEXTS[0])[0][:300]
    return {
        "model": base64.b64encode(proto).decode(),
        "crcs": crcs,
        "decoded": [zlib.crc32(each.encode()) for each in decoded],
        "text": head,
        "ids": processor.encode(head),
    }


state = json.loads((text.GOLDEN / "byte-level.json").read_text(encoding="utf-8"))["tokenizer"]
text.write("gguf-byte-level.json", text.gguf_goldens(Tokenizer.from_str(json.dumps(state))))
text.write("tiktoken.json", tiktoken_goldens(state))
text.write("rwkv.json", rwkv_golden(state))
text.write("sentence-piece-models.json", {name: sentence_piece_model(o) for name, o in MODELS.items()})
