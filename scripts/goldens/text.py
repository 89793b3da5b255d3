"""Writes test/golden/text: what Hugging Face's tokenizers, SentencePiece and transformers make of texts
that test/text/corpus.ts can write again. Needs tokenizers, transformers, sentencepiece, gguf (PyPI).

    python scripts/goldens/text.py [SmolLM2-135M-Instruct.Q4_1.gguf]
    node_modules/.bin/biome check --write test/golden/text

Without the GGUF, the goldens of its vocabulary are kept as they are.
"""

import io
import json
import re
import sys
import zlib
from pathlib import Path

# Scripts beside this one have the names of packages.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

GOLDEN = Path(__file__).resolve().parents[2] / "test/golden/text"
SNIPPETS = json.loads((GOLDEN / "snippets.json").read_text(encoding="utf-8"))
CHUNKS = 72
SNIPPETS_PER_CHUNK = 1300
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def corpus(seed):
    """One chunk of text; corpus.ts does the same, step for step."""
    state = seed

    def draw(count):
        nonlocal state
        state = (state * 1664525 + 1013904223) % 2**32
        return (state >> 8) % count

    parts = []
    for _ in range(SNIPPETS_PER_CHUNK):
        if draw(4) == 0:
            parts.append("".join(LETTERS[draw(len(LETTERS))] for _ in range(1 + draw(9))))
        else:
            parts.append(SNIPPETS[draw(len(SNIPPETS))])
        if draw(3) == 0:
            parts.append(" ")
    return "".join(parts)


TEXTS = [corpus(seed) for seed in range(CHUNKS)]
TRAINING = [line for text in TEXTS[:4] for line in text.split("\n")]


def crc(ids):
    return zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


def golden(encode, decode=None):
    """Checks of the ids of every chunk, and the whole ids of the beginning of one."""
    ids = [encode(text) for text in TEXTS]
    head = TEXTS[0][:200]
    result = {"crcs": [crc(i) for i in ids], "text": head, "ids": encode(head)}
    if decode:
        result["decoded"] = [zlib.crc32(decode(i).encode()) for i in ids]
    return result


def fast_golden(tokenizer):
    return golden(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (GOLDEN / name).write_text(text + "\n", encoding="utf-8")


# Byte-level BPE: one vocabulary, cut in the ways of the models that the names stand for.

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(end)s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(end)s"
    r"|\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ"
    "\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
GGUF_PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CL100K % "{1,3}"],
    "qwen2": [CL100K % ""],
    "tekken": [CASED % {"end": "", "digits": ""}],
    "gpt-4o": [CASED % {"end": "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "digits": "{1,3}"}],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
}
GGUF_PATTERNS["deepseek-llm"] = [
    "[\r\n]",
    "\\s?[%s]+" % CASED_LETTERS,
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "\\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    "\\p{N}+",
]
GGUF_PATTERNS["default"] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]
GGUF_PATTERNS["viking"] = [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]
GGUF_PATTERNS["minicpm5"] = [r"\p{N}{1,3}", CL100K % "+"]
GGUF_PATTERNS["laguna"] = ["[^\\n]+|[\\n]+", CL100K % ""]
GGUF_PATTERNS["youtu"] = [
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    CASED % {"end": "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "digits": ""},
]
GGUF_PATTERNS["bailingmoe"] = [
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
]
GGUF_PATTERNS["seed-coder"] = [
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
]
GGUF_PATTERNS["exaone-moe"] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>"]
CONTROL += ["<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<start_of_turn>", "<end_of_turn>"]
CONTROL += ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"]
CONTROL += ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<s>", "</s>", "<bos>"]
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


def isolating(patterns):
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return tokenizer


def byte_level_goldens(tokenizer):
    variants = {
        "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "gpt2 with a space before": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "digits apart": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]
        ),
        "digits together": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(False), pre_tokenizers.ByteLevel(False)]
        ),
        "punctuation": pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False)]
        ),
        "merged with next": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\s"), "merged_with_next"),
                pre_tokenizers.Split(Regex("[.,]"), "merged_with_previous"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ]
        ),
    }
    goldens = {}
    for name, step in variants.items():
        tokenizer.pre_tokenizer = step
        goldens[name] = {
            "pre_tokenizer": json.loads(tokenizer.to_str())["pre_tokenizer"],
            **fast_golden(tokenizer),
        }
    return goldens


def gguf_goldens(tokenizer):
    goldens = {}
    for name, patterns in GGUF_PATTERNS.items():
        tokenizer.pre_tokenizer = isolating(patterns)
        tokenizer.model.ignore_merges = name in ("llama-bpe", "tekken", "minicpm5", "youtu")
        goldens[name] = fast_golden(tokenizer)
    tokenizer.model.ignore_merges = False
    return goldens


# SentencePiece's kinds, in the form that tokenizer.json gives them.


def llama_like():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    # Cut while training only, or every line would become a token.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        limit_alphabet=150,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    # In models' files the byte tokens are ordinary ones.
    state["added_tokens"] = state["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=900,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=900,
        special_tokens=["[UNK]", "[CLS]", "[SEP]"],
        limit_alphabet=150,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def sentence_piece(kind):
    """A model of SentencePiece itself, as the arrays that GGUF stores."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING),
        model_writer=model,
        model_type=kind,
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        user_defined_symbols=["<tool_call>", "<think>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.get_piece_size()

    def type_of(i):
        if processor.is_unknown(i):
            return 2
        if processor.is_control(i):
            return 3
        if processor.is_byte(i):
            return 6
        return 4 if processor.id_to_piece(i).startswith("<t") else 1

    def encode(text):
        # A NUL ends the text for SentencePiece, and llama.cpp puts a space after a user's token. By
        # lines, since SentencePiece sums scores as 32-bit floats, which tells in a long text.
        lines = re.sub("\0|<think>", "", text).split("\n")
        return [i for line in lines for i in processor.encode(line)]

    return {
        "tokens": [processor.id_to_piece(i) for i in range(size)],
        "scores": [processor.get_score(i) for i in range(size)],
        "token_type": [type_of(i) for i in range(size)],
        "golden": golden(encode),
    }


def smollm(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return fast_golden(tokenizer)


# Chat templates in the style of the common families, in our own words.

TEMPLATES = json.loads((GOLDEN / "templates.json").read_text(encoding="utf-8"))
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city, \"now\" — or 'later'",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Köln", "東京"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = {"type": "function", "id": "call_1", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}
USER = {"role": "user", "content": "  Hi there, how are you?\n"}
ANSWER = {"role": "assistant", "content": "Fine. <think>Not really.</think> And you?  "}
CHATS = {
    "one": {"messages": [USER], "add_generation_prompt": True},
    "system": {
        "messages": [{"role": "system", "content": "Be brief: 日本語 👩‍👩‍👧 ok."}, USER, ANSWER, {"role": "user", "content": "Ok?"}],
        "add_generation_prompt": True,
    },
    "closed": {"messages": [USER, ANSWER]},
    "continued": {"messages": [USER, ANSWER], "continue_final_message": True},
    "tools": {"messages": [USER], "tools": [WEATHER], "add_generation_prompt": True},
    "tool results": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "content": "{\"sun\": true}", "tool_call_id": "call_1"},
        ],
        "tools": [WEATHER],
        "add_generation_prompt": True,
    },
    "not thinking": {"messages": [USER], "add_generation_prompt": True, "enable_thinking": False},
}


def chat_goldens(tokenizer):
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    chat = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    cases = []
    for template, source in TEMPLATES.items():
        for name, request in CHATS.items():
            case = {"template": template, "chat": name}
            try:
                text = chat.apply_chat_template(**with_messages(request), chat_template=source, tokenize=False)
                ids = chat.apply_chat_template(**with_messages(request), chat_template=source, return_dict=False)
                case |= {"text": text, "ids": ids}
            except Exception as error:
                case["error"] = re.sub(r"\s.*", "", type(error).__name__)
            cases.append(case)
    return {"named_tokens": names, "chats": CHATS, "cases": cases}


# What templates do with Python's values.
EXPRESSIONS = [
    "{{ list }} {{ map }} {{ yes }} {{ [1, 2.5, none, false] }} {{ [] }}{{ {} }}",
    "{{ ['it\\'s', 'say \"x\"', 'both \\' and \"', 'a\\nb\\tc'] }}",
    "{{ list|string }} {{ map|string|length }} {{ yes|string }} {{ 3|string }} {{ 2.0|string }}",
    "{{ missing|trim }}|{{ missing|upper }}|{{ list|upper }}|{{ map|replace(\"'\", '') }}",
    "{{ 'a' ~ 1 ~ yes ~ list ~ missing ~ none }}",
    "{{ map.items()|list|length }} {{ map.keys()|list }} {{ map['items'] }} {{ map.get('items') }} {{ map.get('b', 'd') }}",
    "{% for key, value in map.items() %}{{ key }}={{ value }};{% endfor %}",
    "{% set gears = {1024: 'b', 0: 'a', 16384: 'c'} %}{% for k, v in gears|dictsort %}{{ k }}{% if k <= 1024 %}!{% endif %}{{ v }} {% endfor %}{{ gears[1024] }}",
    "{{ [3, 1, 2]|min }} {{ [3, 1, 2]|max }} {{ '%s is %d%%'|format('x', 5) }}",
    "{{ '<{}:{}>'.format('a', 7) }} {{ '{1}{0}{{}}'.format('a', true) }} {{ 'abcb'.find('b') }} {{ 'abcb'.count('b') }} {{ '42'.isdigit() }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removesuffix('') }}",
    "{% for c in 'añ👍' %}[{{ c }}]{% endfor %}{% for c in missing %}x{% endfor %}",
    "{{ map is iterable }} {{ list is iterable }} {{ missing is iterable }} {{ 3 is iterable }} {{ map is not iterable }}",
    "{{ none|selectattr('x')|list }} {{ missing|map(attribute='x')|join(',') }} {{ map|list }} {{ map|join('-') }}",
    "{{ list in [1, 2] }} {{ list not in [1] }} {{ map[missing] is defined }} {{ map[none] is defined }}",
    "{% macro flag(on=false, items=[]) %}{{ on }}{{ items }}{% if on %}on{% endif %}{% endmacro %}{{ flag() }} {{ flag(true) == 'True[]on' }}",
    "{% if yes %}{{ yes and list }}{% endif %}{% set block %}{{ list }}{% endset %}{{ block|length }}",
]


def expression_goldens():
    from transformers.utils.chat_template_utils import _compile_jinja_template

    given = {"list": ["x", 1, {"k": None}], "map": {"items": [1], "type": "object", "a": True}, "yes": True}
    cases = [{"source": s, "text": _compile_jinja_template(s).render(**given)} for s in EXPRESSIONS]
    return {"given": given, "cases": cases}


def with_messages(request):
    request = dict(request)
    return {"conversation": request.pop("messages"), **request}


def main():
    bpe = byte_level()
    state = json.loads(bpe.to_str())
    write("byte-level.json", {"tokenizer": state, "variants": byte_level_goldens(bpe)})
    write("gguf-byte-level.json", gguf_goldens(bpe))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    write("chats.json", chat_goldens(bpe))
    write("expressions.json", expression_goldens())
    for name, tokenizer in [("llama", llama_like()), ("unigram", unigram()), ("word-piece", word_piece())]:
        write(f"{name}.json", {"tokenizer": json.loads(tokenizer.to_str()), "golden": fast_golden(tokenizer)})
    write("sentence-piece.json", {kind: sentence_piece(kind) for kind in ("bpe", "unigram")})
    if len(sys.argv) > 1:
        write("smollm2.json", smollm(sys.argv[1]))
    print(sum(len(t.encode()) for t in TEXTS), "bytes of text")


if __name__ == "__main__":
    main()
