"""mlx-lm for scripts/bench/engine.ts. It prints a line when it is ready. Then, for each line
{"prompts": [[id]], "maxTokens": n} of its standard input, it generates for all prompts at once, as
batch_generate does, and prints the tokens a second.

    python scripts/bench/mlx-lm.py <SmolLM2-135M-Instruct.Q4_1.gguf, or a folder>
"""

import json
import pathlib
import sys
import tempfile
import time

import mlx.core as mx
from gguf import GGUFReader
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

sys.path.append(str(pathlib.Path(__file__).parent / "goldens"))
from smollm2 import hugging_face

path = pathlib.Path(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    if path.is_file():
        hugging_face(GGUFReader(path), pathlib.Path(folder))
    model, _ = load_model(pathlib.Path(folder) if path.is_file() else path)
# In 16 bits mlx-lm is many times slower on a CPU.
model.set_dtype(mx.float32)

print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    prompts, count = request["prompts"], request["maxTokens"]
    generator = BatchGenerator(model, max_tokens=count, stop_tokens=[])
    generator.insert(prompts, [count] * len(prompts))
    start, tokens = time.perf_counter(), 0
    while responses := generator.next_generated():
        tokens += len(responses)
    print(tokens / (time.perf_counter() - start), flush=True)
    generator.close()
