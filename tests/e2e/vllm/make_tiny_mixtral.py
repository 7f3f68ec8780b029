"""Write a tiny Mixtral (2 layers, 8 experts, top-2, 22 MB) with fixed random weights that differ per layer.

Usage: python make_tiny_mixtral.py DIR [SEED]     needs torch, safetensors, tokenizers
vLLM's `--load-format dummy` routes both layers alike, which hides layer mix-ups and stale rows.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

HIDDEN, INNER, VOCAB, LAYERS, EXPERTS, HEADS, KV_HEADS = 256, 512, 8192, 2, 8, 4, 2
CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 512,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_local_experts": EXPERTS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCAB,
    "router_jitter_noise": 0.0,
}


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    head = HIDDEN // HEADS
    tensors = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN, std=1.0),
        "lm_head.weight": normal(VOCAB, HIDDEN, std=0.02),
        "model.norm.weight": ones.clone(),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            at + f"{norm}.weight": ones.clone() for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for name, size in (("q", HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            tensors[at + f"self_attn.{name}_proj.weight"] = normal(size, HIDDEN, std=0.06)
        tensors[at + "self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * head, std=0.06)
        tensors[at + "block_sparse_moe.gate.weight"] = normal(EXPERTS, HIDDEN, std=0.3)
        for expert in range(EXPERTS):
            for name, shape in (("w1", (INNER, HIDDEN)), ("w3", (INNER, HIDDEN)), ("w2", (HIDDEN, INNER))):
                tensors[at + f"block_sparse_moe.experts.{expert}.{name}.weight"] = normal(*shape, std=0.06)
    return tensors


def main(directory: Path, seed: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3} | {f"tok{i}": i for i in range(4, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": 512,
                "clean_up_tokenization_spaces": False,
            }
            | special
        )
    )
    (directory / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "do_sample": False})
    )
    save_file(weights(seed), str(directory / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
