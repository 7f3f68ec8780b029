"""Compare recorded arrays with the router of `transformers` for the same weights, in float32.

Usage: python expected.py MODEL RECORDS.npz     needs torch, transformers
Prints one JSON document.
"""

import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def routed(model, tokens):
    """Give the chosen experts [tokens, L, K] in the router's order, and by how much a logit won at least."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    chosen, margins = [], []
    for layer in logits:
        top = layer.float().topk(model.config.num_experts_per_tok + 1)
        chosen.append(top.indices[:, :-1])
        margins.append(float((top.values[:, :-1] - top.values[:, 1:]).min()))
    return torch.stack(chosen, dim=1).numpy(), min(margins)


def main(folder, records):
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    totals = {"arrays": 0, "arrays equal": 0, "tokens": 0, "layers": model.config.num_hidden_layers, "ids": 0}
    rows_that_differ, smallest = 0, 1.0
    with np.load(records) as file:
        for name in sorted(key for key in file if key.startswith("tokens")):
            tokens, array = file[name], file[name.replace("tokens", "array")]
            expected, margin = routed(model, tokens[:-1].tolist())
            smallest = min(smallest, margin)
            same = array.shape == expected.shape and (array == expected).all(axis=(1, 2))
            totals["arrays"] += 1
            totals["arrays equal"] += int(np.all(same))
            totals["tokens"] += len(expected)
            totals["ids"] += expected.size
            if np.ndim(same) == 0:
                same = np.zeros(len(expected), dtype=bool)
            rows_that_differ += int(np.count_nonzero(~same))
    print(json.dumps(totals | {"rows that differ": rows_that_differ, "smallest margin": smallest}))


if __name__ == "__main__":
    main(*sys.argv[1:])
