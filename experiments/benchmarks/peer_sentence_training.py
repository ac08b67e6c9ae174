"""MiniLM trained by sentence-transformers; runs in the second environment (`make parity`).

    python experiments/benchmarks/peer_sentence_training.py FOLDER MODEL OUT [--mini-batch N]

FOLDER/plan.json holds the batches, the rates, the scale and the longest text, as
experiments/benchmarks/sentence_transformers_training.py writes them. The loss is
MultipleNegativesRankingLoss, with a mini-batch CachedMultipleNegativesRankingLoss. Without dropout
(the model stays in evaluation mode), AdamW without weight decay, gradients of norm 1 at most. OUT
gets the trained model, the first step's gradients and numbers. It imports nothing of this project.
"""

import argparse
import json
import pathlib
import time

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  in the second environment
from peak_memory import Peak  # pyright: ignore[reportMissingImports]  beside it
from peer_sentence import (  # pyright: ignore[reportMissingImports]  beside it
    SentenceTransformer,
    named_gradients,
)
from sentence_transformers import losses  # pyright: ignore[reportMissingImports]  after the above


def features(model, texts):
    """What the model reads."""
    found = model.preprocess(list(texts))
    return {name: value for name, value in found.items() if torch.is_tensor(value)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "model", "out"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--mini-batch", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(0)
    plan = json.loads((options.folder / "plan.json").read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    model = SentenceTransformer(str(options.model), device="cpu").eval()
    model.max_seq_length = plan["text_length"]
    if options.mini_batch:
        loss_fn = losses.CachedMultipleNegativesRankingLoss(
            model, scale=plan["scale"], mini_batch_size=options.mini_batch
        )
    else:
        loss_fn = losses.MultipleNegativesRankingLoss(model, scale=plan["scale"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0, eps=1e-8)
    values, seconds = [], []
    with Peak() as memory:
        for batch, rate in zip(plan["batches"], plan["rates"], strict=True):
            begin = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = loss_fn(
                [features(model, batch["queries"]), features(model, batch["positives"])], None
            )
            loss.backward()
            if not values:
                arrays = dict(named_gradients(model))
                np.savez_compressed(options.out / "gradients.npz", **arrays)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            values.append(loss.item())
            seconds.append(time.perf_counter() - begin)
    model.save(str(options.out / "model"), create_model_card=False)
    numbers = {"losses": values, "seconds": seconds, "peak_bytes": memory.peak}
    (options.out / "numbers.json").write_text(json.dumps(numbers))


if __name__ == "__main__":
    main()
