"""vLLM for scripts/bench/gpu.ts, with the lines of mlx-lm.py on standard input and output. It has random weights of
the folder's shape: only config.json is read. States of recurrent layers are in float32, as mlx-serve keeps them.

    python scripts/bench/gpu/vllm-engine.py <folder> <longest sequence> <requests at once> <bytes of keys and values>
"""

import itertools
import json
import os
import random
import sys
import tempfile
import time

# Whatever libraries print is no answer, and libraries in C print too.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # In this process, where its dummy weights are replaced.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# FlashInfer compiles its kernels when they are first used, for which the machine may lack a compiler.
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
import torch
import vllm
import vllm.model_executor.model_loader.dummy_loader as dummy_loader
from vllm.sampling_params import RequestOutputKind

ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
}
DEFAULTS = {"torch_dtype": "bfloat16", "hidden_act": "silu"}
FAMILY_DEFAULTS = {
    "deepseek_v2": {
        "q_lora_rank": None,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    }
}


def answer(value):
    print(json.dumps(value), file=answers, flush=True)


def plausible_weights(module, *_):
    """As a trained model has them in size. vLLM's own are so small that all experts have the same score."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.data_ptr() in seen or not torch.is_floating_point(weight):
                continue
            seen.add(weight.data_ptr())
            if weight.ndim == 1 and "norm" in name:
                weight.fill_(1.0)
            else:
                weight.normal_(0, 0.02)


seen = set()
dummy_loader.initialize_dummy_weights = plausible_weights


def load(folder, longest, requests, kv_bytes):
    with open(os.path.join(folder, "config.json")) as file:
        config = DEFAULTS | json.load(file)
    family = config["model_type"]
    config = FAMILY_DEFAULTS.get(family, {}) | config | {"architectures": [ARCHITECTURES[family]]}
    states = {"mamba_ssm_cache_dtype": "float32"} if family == "qwen3_next" else {}
    with tempfile.TemporaryDirectory() as made:
        with open(os.path.join(made, "config.json"), "w") as file:
            json.dump(config, file)
        return vllm.LLM(
            model=made,
            dtype="bfloat16",
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=requests,
            # The others have their share of the GPU. The first only has to be free when it starts.
            gpu_memory_utilization=0.05,
            kv_cache_memory_bytes=kv_bytes,
            enable_prefix_caching=False,
            disable_log_stats=True,
            kernel_config={"enable_flashinfer_autotune": False},
            gdn_prefill_backend="triton",
            **states,
        ).llm_engine


def measure(requests, prompt, new, vocabulary):
    prompts = [random.choices(range(vocabulary), k=prompt) for _ in range(requests)]
    params = vllm.SamplingParams(
        temperature=0,
        max_tokens=new,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    arrivals = {}
    start = time.perf_counter()
    for tokens in prompts:
        name = str(next(names))
        engine.add_request(name, {"prompt_token_ids": tokens}, params)
        arrivals[name] = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = (time.perf_counter() - start) * 1000
        for output in outputs:
            arrivals[output.request_id] += [now] * len(output.outputs[0].token_ids)
    return list(arrivals.values())


names = itertools.count()
folder, *sizes = sys.argv[1:]
engine = load(folder, *map(int, sizes))
answer({"version": vllm.__version__})
for line in sys.stdin:
    try:
        answer({"arrivals": measure(**json.loads(line))})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
