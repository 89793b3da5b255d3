"""Writes test/golden/authors/normal-forms.json: what tokenizers (PyPI) makes of every character, alone
and between combining marks, and of all pairs that compose in Unicode (unicodedata2, PyPI).

    python scripts/goldens/normal_forms.py
    node_modules/.bin/biome check --write test/golden/authors

tokenizers has tables of Unicode 9: it does not normalize characters that are newer.
"""

import hashlib
import json
import pathlib

import unicodedata2
from tokenizers import normalizers

PATH = pathlib.Path(__file__).resolve().parents[2] / "test/golden/authors/normal-forms.json"
STEPS = ["NFC", "NFD", "NFKC", "NFKD"]
# All planes with characters that are not private; [first, end).
RANGES = [[0, 0xD800], [0xE000, 0x32000], [0xE0000, 0xE0200]]

chars = [chr(code) for first, end in RANGES for code in range(first, end)]
parts = [unicodedata2.decomposition(char).split() for char in chars]
pairs = ["".join(chr(int(code, 16)) for code in two) for two in parts if len(two) == 2 and two[0][0] != "<"]
text = "".join(f"\n{char}\n\u0301{char}\u0334" for char in chars) + "\n" + "\n".join(pairs)


def digest(step):
    normalized = getattr(normalizers, step)().normalize_str(text)
    return hashlib.sha256(normalized.encode()).hexdigest()


golden = {"ranges": RANGES, "pairs": "".join(pairs), "sha256": {step: digest(step) for step in STEPS}}
PATH.write_text(json.dumps(golden))
