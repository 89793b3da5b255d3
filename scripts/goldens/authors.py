"""Writes test/golden/authors/goldens.json with transformers 5.23.0: what the authors' code makes of tiny models.

    python scripts/goldens/authors.py [name ...]    (all cases of configs.json, or these)
    node_modules/.bin/biome check --write test/golden/authors

configs.json has configurations as they are published, small in depth and width alone. Of each the goldens keep the
tensors that the published files have, the configuration as transformers saves it, log-probabilities of a prompt that
is longer than windows and original lengths, and greedy tokens. `oracle` holds what transformers must be told where it
does not understand the published configuration, and `saved_is_lossy` stands where it does not understand its own.
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
import sys
import tempfile

import torch
import transformers
from models import rounded, uniform, values
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test/golden/authors"
VERSION = "5.23.0"
PROMPT_TOKENS = 700
# Higher tokens stand for images.
TEXT_TOKENS = 240
GREEDY_TOKENS = 8
# Scored alone, too: longrope rotates short sequences differently.
SHORT_TOKENS = 200
# Every 25th token of the prompt has its log-probability kept, and the last token's successor the first 16.
EVERY = 25
LAST = 16
MIN_GAP = 2e-2
# Weights that change by this much, and by as much the other way, move the numbers as far the other way: if not, a token
# is close to having other experts. One random change may leave such a token where it is.
NUDGE = 3e-6
CHANGES = 2
MAX_ASYMMETRY = 1e-3
AUTOS = [AutoModelForCausalLM, AutoModelForImageTextToText]
# Keys that transformers reads or derives without declaring them.
UNDECLARED = {"model_type", "architectures", "head_dim", "intermediate_size", "per_layer_config"}
# Keys of saved configurations that say nothing about the text model.
UNUSED = """transformers_version dtype initializer_range use_cache bos_token_id eos_token_id pad_token_id
    sep_token_id eod_token_id attention_dropout hidden_dropout vision_config audio_config is_encoder_decoder
    output_router_logits router_aux_loss_coef id2label label2id pretraining_tp""".split()


def model_class(config):
    for auto in reversed(AUTOS) if hasattr(config, "text_config") else AUTOS:
        if type(config) in auto._model_mapping:
            return auto._model_mapping[type(config)]
    raise SystemExit(f"transformers has no model for {type(config).__name__}")


def config_of(case):
    config = {**case["config"], **case.get("oracle", {})}
    return config["text_config"] if case.get("text_only") else config


def write_config(case, folder):
    (folder / "config.json").write_text(json.dumps(config_of(case)))


def own_keys(config, saved, published):
    """What transformers saves, but for the published keys that it only keeps."""
    fields = {field.name for field in dataclasses.fields(config)} | UNDECLARED
    names = fields | {config.attribute_map.get(name, name) for name in fields}
    own = {key: value for key, value in saved.items() if key in names or key not in published}
    if "text_config" in saved:
        text = published.get("text_config", published)
        own["text_config"] = own_keys(config.text_config, saved["text_config"], text)
    return own


def published_names(case, shapes):
    """Names and shapes of the published files, which differ from those that transformers saves in few cases."""
    published = {}
    for name, shape in shapes.items():
        if re.search(case.get("left_out", "^$"), name):
            continue
        if re.search(case.get("transposed", "^$"), name):
            shape = [*shape[:-2], shape[-1], shape[-2]]
        for pattern, replacement in case.get("names", {}).items():
            name = re.sub(pattern, replacement, name)
        published[name] = shape
    return published


def describe(case, folder):
    """The model's class, its tensors in published files, and those that only transformers has."""
    write_config(case, folder)
    config = AutoConfig.from_pretrained(folder)
    made = model_class(config)
    made._from_config(config, dtype=torch.float32).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
    left_out = {name: shape for name, shape in shapes.items() if re.search(case.get("left_out", "^$"), name)}
    return made, published_names(case, shapes), left_out


def about_text(config):
    if not isinstance(config, dict):
        return config
    return {key: about_text(value) for key, value in config.items() if key not in UNUSED}


def load(case, made, folder):
    own = {"dtype": torch.float32, "attn_implementation": "eager"}
    model, found = made.from_pretrained(folder, output_loading_info=True, **own)
    assert not any(found.values()), (case["name"], found)
    correct = CORRECTIONS.get(case["config"]["model_type"])
    if correct:
        correct(model)
    return model.eval()


def correct_phimoe(model):
    """transformers always takes the short factors; Microsoft's own code takes the long ones for long sequences."""
    rope = model.model.rotary_emb
    init, forward = rope.rope_init_fn, rope.forward

    def forward_by_length(x, position_ids):
        rope.rope_init_fn = functools.partial(init, seq_len=int(position_ids.max()) + 1)
        return forward(x, position_ids=position_ids)

    rope.forward = forward_by_length


def correct_nemotron_h(model):
    """transformers clamps the step sizes of prompts at time_step_min; NVIDIA's own code at time_step_limit."""
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(model.config.time_step_limit)


CORRECTIONS = {"phimoe": correct_phimoe, "nemotron_h": correct_nemotron_h}


@torch.no_grad()
def log_probabilities(model, tokens):
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), -1)


@torch.no_grad()
def asymmetry(model, prompt, expected):
    kept = [(parameter, parameter.clone()) for parameter in model.parameters()]
    most = 0.0
    for change in range(CHANGES):
        both = torch.zeros_like(expected)
        for nudge in (NUDGE, -NUDGE):
            torch.manual_seed(change)
            for parameter, value in kept:
                parameter.copy_(value * (1 + nudge * torch.randn_like(value)))
            both += log_probabilities(model, prompt) - expected
        most = max(most, float(both.abs().max()))
    for parameter, value in kept:
        parameter.copy_(value)
    return most


def golden(case):
    with tempfile.TemporaryDirectory() as folder:
        return golden_in(case, pathlib.Path(folder))


def golden_in(case, folder):
    made, published, left_out = describe(case, folder)
    shapes = {**published, **left_out}
    numbers = uniform(f"prompt/{case['name']}", PROMPT_TOKENS)
    # In float64, as in the test.
    prompt = [int((float(x) + 1) * TEXT_TOKENS / 2) for x in numbers]
    for seed in range(1, 20):
        weights = {name: values(case, seed, name, shape) for name, shape in shapes.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_config(case, folder)
        model = load(case, made, folder)
        first = log_probabilities(model, prompt)
        moved = asymmetry(model, prompt, first)
        if moved > MAX_ASYMMETRY:
            print(f"{case['name']:28} seed {seed} asymmetry {moved:.1e}", flush=True)
            continue
        tokens, last, gap = list(prompt), first[-1], math.inf
        for _ in range(GREEDY_TOKENS):
            best = torch.topk(last, 2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            last = log_probabilities(model, tokens)[-1]
        greedy = tokens[PROMPT_TOKENS:]
        size = sum(math.prod(shape) for shape in published.values()) / 1e6
        spread = f"std {first.std():.2f} asymmetry {moved:.1e} distinct {len(set(greedy))} size {size:.1f} M"
        print(f"{case['name']:28} seed {seed} gap {gap:.1e} {spread}", flush=True)
        if gap > MIN_GAP and len(set(greedy)) > 1:
            break
    else:
        raise SystemExit(f"{case['name']}: no good seed")
    model.config.save_pretrained(folder)
    saved = own_keys(model.config, json.loads((folder / "config.json").read_text()), config_of(case))
    if not case.get("saved_is_lossy"):
        (folder / "config.json").write_text(json.dumps(saved))
    else:
        write_config(case, folder)
    saved = about_text({"text_config": saved} if case.get("text_only") else saved)
    short = log_probabilities(load(case, made, folder), prompt[:SHORT_TOKENS])
    return {
        "seed": seed,
        "tensors": together(published),
        "saved": saved,
        "prompt": every(first, prompt),
        "short": every(short, prompt),
        "last": rounded(first[-1][:LAST]),
        "greedy": greedy,
    }


def every(numbers, prompt):
    return rounded(numbers[at - 1][prompt[at]] for at in range(EVERY, len(numbers), EVERY))


def together(shapes):
    """Shapes -> names; those that differ in a number are one: model.layers.0-3.mlp.experts.0-63.…"""
    entries = [(name.split("."), shape) for name, shape in shapes.items()]
    for at in reversed(range(max(len(parts) for parts, _ in entries))):
        groups = {}
        for parts, shape in entries:
            is_number = at < len(parts) and parts[at].isdigit()
            key = (*parts[:at], None, *parts[at + 1 :]) if is_number else tuple(parts)
            groups.setdefault((key, tuple(shape)), []).append(int(parts[at]) if is_number else None)
        entries = []
        for (key, shape), numbers in groups.items():
            if numbers == [None]:
                entries.append((list(key), list(shape)))
                continue
            for first, last in runs(sorted(numbers)):
                part = f"{first}" if first == last else f"{first}-{last}"
                entries.append(([part if each is None else each for each in key], list(shape)))
    by_shape = {}
    for parts, shape in sorted(entries):
        by_shape.setdefault(" ".join(map(str, shape)), []).append(".".join(parts))
    return {shape: " ".join(names) for shape, names in by_shape.items()}


def runs(numbers):
    found = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def main():
    assert transformers.__version__ == VERSION, f"the goldens are of transformers {VERSION}"
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    cases = json.loads((FOLDER / "configs.json").read_text())
    path = FOLDER / "goldens.json"
    goldens = json.loads(path.read_text())["models"] if len(sys.argv) > 1 else {}
    for case in cases:
        if len(sys.argv) == 1 or case["name"] in sys.argv[1:]:
            goldens[case["name"]] = golden(case)
    known = {config.model_type for auto in AUTOS for config in auto._model_mapping}
    in_order = {case["name"]: goldens[case["name"]] for case in cases}
    path.write_text(json.dumps({"version": VERSION, "model_types": " ".join(sorted(known)), "models": in_order}))


if __name__ == "__main__":
    main()
