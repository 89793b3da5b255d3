"""mlx-lm for scripts/bench/gpu.ts. It loads the model and prints a line when it is ready. Then, for each
line {"requests": n, "prompt": n, "new": n, "vocabulary": n} of its standard input, it generates for so many
random prompts at once and prints {"arrivals": [[ms]]}: of each request, when each token came. Where that
fails it prints {"error": text}. All of them run in one batch; what else can be set is left as mlx-lm has it.

    python scripts/bench/gpu/mlx-lm.py <folder> <share of the memory>
"""

import json
import pathlib
import random
import sys
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

# Whatever libraries print is no answer.
answers, sys.stdout = sys.stdout, sys.stderr


def answer(value):
    print(json.dumps(value), file=answers, flush=True)


def measure(requests, prompt, new, vocabulary):
    prompts = [random.choices(range(vocabulary), k=prompt) for _ in range(requests)]
    generator = BatchGenerator(
        model, max_tokens=new, stop_tokens=[], completion_batch_size=max(32, requests)
    )
    try:
        start = time.perf_counter()
        arrivals = {uid: [] for uid in generator.insert(prompts, [new] * requests)}
        while responses := generator.next_generated():
            now = (time.perf_counter() - start) * 1000
            for response in responses:
                arrivals[response.uid].append(now)
        return list(arrivals.values())
    finally:
        generator.close()


folder, share = sys.argv[1:]
# Other programs have their share of the GPU: buffers that are kept for later must not take it.
limit = mx.set_memory_limit(2**40)
mx.set_memory_limit(int(float(share) * limit))
model, _ = load_model(pathlib.Path(folder))
answer({"device": str(mx.default_device()), "version": mlx_lm.__version__})
for line in sys.stdin:
    try:
        answer({"arrivals": measure(**json.loads(line))})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
