"""vLLM's decode rate and prefill time on a GPU, by load, with random weights of a folder's shape:

  python3 scripts/bench-vllm.py <folder of a model> 1,16,64,128,64x1024

64x1024 is 64 requests at once with prompts of 1,024 tokens. The folder is one of scripts/random-model.ts, of which only
config.json is read. States of recurrent layers are in float32, as mlx-serve keeps them.
"""

import json
import os
import random
import sys
import tempfile
import time

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # In this process, where its dummy weights are replaced.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
import torch
import vllm.model_executor.model_loader.dummy_loader as dummy_loader
from vllm import LLM, SamplingParams

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
NEW_TOKENS = 256
ROUNDS = 2


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


def load(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = DEFAULTS | json.load(file)
    family = config["model_type"]
    config |= {"architectures": [ARCHITECTURES[family]]}
    config = FAMILY_DEFAULTS.get(family, {}) | config
    with tempfile.TemporaryDirectory() as made:
        with open(os.path.join(made, "config.json"), "w") as file:
            json.dump(config, file)
        states = {"mamba_ssm_cache_dtype": "float32"} if family == "qwen3_next" else {}
        model = LLM(
            model=made,
            dtype="bfloat16",
            load_format="dummy",
            skip_tokenizer_init=True,
            gpu_memory_utilization=0.75,
            max_model_len=int(os.environ.get("MAX_MODEL_LEN", "4096")),
            max_num_seqs=int(os.environ.get("MAX_NUM_SEQS", "128")),
            enable_prefix_caching=False,
            disable_log_stats=True,
            kernel_config={"enable_flashinfer_autotune": False},
            gdn_prefill_backend="triton",
            **states,
        )
    return model, config["vocab_size"]


def seconds(model, vocabulary, requests, prompt, new):
    prompts = [
        {"prompt_token_ids": random.choices(range(vocabulary), k=prompt)} for _ in range(requests)
    ]
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    answers = model.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    assert all(len(each.outputs[0].token_ids) == new for each in answers)
    return elapsed


def main():
    folder, loads = sys.argv[1:]
    model, vocabulary = load(folder)
    for each in loads.split(","):
        requests, prompt = map(int, (each.split("x") + ["128"])[:2])
        size = (model, vocabulary, requests, prompt)
        seconds(*size, 64)
        first = min(seconds(*size, 1) for _ in range(ROUNDS))
        whole = min(seconds(*size, NEW_TOKENS) for _ in range(ROUNDS))
        rate = requests * (NEW_TOKENS - 1) / (whole - first)
        print(f"{requests} x {prompt}: {rate:.0f} tokens/s, prompts {first * 1000:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
