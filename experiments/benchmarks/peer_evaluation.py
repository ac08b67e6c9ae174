"""Peers' evaluations on embeddings that exist; runs in the second environment (`make parity`).

    python experiments/benchmarks/peer_evaluation.py --values IN.npz OUT.json
    python experiments/benchmarks/peer_evaluation.py --time clip_benchmark IN.npz
    python experiments/benchmarks/peer_evaluation.py --texts FOLDER TEXTS.json OUT.npy

``--values`` gives what CLIP_benchmark, sentence-transformers and pytrec_eval say of the same rows.
``--time`` measures one of the two and prints seconds and bytes. ``--texts`` encodes texts with a
model of sentence-transformers. It imports nothing of this project.
"""

import argparse
import json
import time
from importlib.metadata import version

import numpy as np
import torch  # in the second environment
from peak_memory import Peak
from peer_open_clip import declare_operators

_DECLARED = declare_operators()  # torchvision is without its own


class Rows:
    """A model of sentence-transformers whose texts are the numbers of rows."""

    similarity_fn_name = "cosine"

    def __init__(self, queries, corpus, dtype=torch.float64):
        from sentence_transformers import util

        self.similarity = util.cos_sim
        self.sides = [torch.from_numpy(x).to(dtype) for x in (queries, corpus)]
        self.model_card_data = self

    def set_evaluation_metrics(self, *args, **kwargs):
        pass

    def _rows(self, side, texts):
        return self.sides[side][torch.tensor([int(text) for text in texts])]

    def encode_query(self, texts, **kwargs):
        return self._rows(0, texts)

    def encode_document(self, texts, **kwargs):
        return self._rows(1, texts)


class Pairs(Rows):
    """Texts ``a3`` and ``b3`` are row 3 of either side."""

    def encode(self, texts, **kwargs):
        return torch.stack([self.sides["ab".index(text[0])][int(text[1:])] for text in texts])


def clip_retrieval(texts, images, image_of_text, ks, batch, dtype):
    """The second half of CLIP_benchmark's ``evaluate``, after its loop over a model."""
    from clip_benchmark.metrics.zeroshot_retrieval import batchify, recall_at_k

    texts, images = (torch.from_numpy(x).to(dtype) for x in (texts, images))
    scores = texts @ images.t()
    positive = torch.zeros_like(scores, dtype=torch.bool)
    positive[torch.arange(len(scores)), torch.from_numpy(image_of_text)] = True
    found = {}
    for k in ks:
        image = batchify(recall_at_k, scores, positive, batch, "cpu", k=k)
        text = batchify(recall_at_k, scores.T, positive.T, batch, "cpu", k=k)
        found[f"image_retrieval_recall@{k}"] = (image > 0).double().mean().item()
        found[f"text_retrieval_recall@{k}"] = (text > 0).double().mean().item()
    return found


def zero_shot(data):
    from clip_benchmark.metrics import zeroshot_classification
    from clip_benchmark.metrics.zeroshot_classification import accuracy, zero_shot_classifier
    from sklearn.metrics import balanced_accuracy_score

    # Its version 1.6.2 makes a float of an array of one entry, which NumPy 2.4 refuses.
    zeroshot_classification.float = lambda x: np.asarray(x).item()

    prompts = torch.from_numpy(data["prompts"]).double()
    classes, templates, _ = prompts.shape

    class Encoder:
        def encode_text(self, numbers):
            return prompts.reshape(classes * templates, -1)[numbers]

    numbers = [f"{{c}} {t}" for t in range(templates)]

    def tokenizer(texts):
        pairs = (text.split() for text in texts)
        return torch.tensor([int(c) * templates + int(t) for c, t in pairs])

    names = [str(c) for c in range(classes)]
    weights = zero_shot_classifier(Encoder(), tokenizer, names, numbers, "cpu", amp=False)
    logits = 100 * torch.from_numpy(data["pictures"]).double() @ weights
    labels = torch.from_numpy(data["labels"])
    top1, top5 = accuracy(logits, labels, topk=(1, 5))
    mean = balanced_accuracy_score(labels, logits.argmax(dim=1))
    return {"top1": top1, "top5": top5, "mean_per_class": mean, "weights": weights.T.tolist()}


def judged(data):
    """qrels ``{query: {item: gain}}`` of numbers as texts."""
    found = {}
    for row, item, gain in zip(data["rows"], data["items"], data["gains"], strict=True):
        found.setdefault(str(row), {})[str(item)] = int(gain)
    return found


def sentence_retrieval(queries, corpus, qrels, dtype, chunk=50_000):
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    evaluator = InformationRetrievalEvaluator(
        {str(i): str(i) for i in range(len(queries))},
        {str(i): str(i) for i in range(len(corpus))},
        {query: set(items) for query, items in qrels.items()},
        precision_recall_at_k=[1, 10, 100],
        corpus_chunk_size=chunk,
        write_csv=False,
    )
    return evaluator(Rows(queries, corpus, dtype))


def similarity(data):
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    count = len(data["scores"])
    texts = ([f"{side}{i}" for i in range(count)] for side in "ab")
    evaluator = EmbeddingSimilarityEvaluator(*texts, data["scores"].tolist(), write_csv=False)
    return evaluator(Pairs(data["first"], data["second"]))


def binary(data):
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    count = len(data["same"])
    texts = ([f"{side}{i}" for i in range(count)] for side in "ab")
    evaluator = BinaryClassificationEvaluator(
        *texts, data["same"].tolist(), write_csv=False, similarity_fn_names=["cosine"]
    )
    # It encodes the set of all texts, and does arithmetic of NumPy.
    model = Pairs(data["first"], data["second"])
    encode = model.encode
    model.encode = lambda texts, **kwargs: encode(texts).numpy()
    return evaluator(model)


def trec(queries, corpus, qrels):
    import pytrec_eval

    scores = queries.astype(np.float64) @ corpus.astype(np.float64).T
    run = {
        str(i): {str(j): float(x) for j, x in enumerate(row)}
        for i, row in enumerate(scores)
        if str(i) in qrels
    }
    measures = {"ndcg_cut.10", "recip_rank", "map", "map_cut.100", "recall.1,10,100", "P.10",
                "success.1,10"}  # fmt: skip
    found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    names = next(iter(found.values()))
    return {name: float(np.mean([one[name] for one in found.values()])) for name in names}


def values(given, output):
    data = dict(np.load(given))
    qrels = judged(data)
    plain = {q: {d: 1 for d, gain in items.items() if gain > 0} for q, items in qrels.items()}
    found = {
        "clip_benchmark": clip_retrieval(
            data["texts"], data["images"], data["image_of_text"], (1, 5, 10), 64, torch.float64
        ),
        "zero_shot": zero_shot(data),
        "sentence": sentence_retrieval(data["queries"], data["corpus"], plain, torch.float64),
        "similarity": similarity(data),
        "binary": binary(data),
        "trec": trec(data["queries"], data["corpus"], qrels),
        "versions": {x: version(x) for x in ("clip_benchmark", "sentence-transformers")},
    }
    with open(output, "w") as file:
        json.dump(found, file)


def timed(peer, given):
    data = dict(np.load(given))
    queries, gallery = data["queries"], data["gallery"]
    target = np.arange(len(queries))
    if peer == "clip_benchmark":
        from clip_benchmark.metrics import zeroshot_retrieval  # noqa: F401  imported before

        def run():
            return one_way(queries, gallery, target)
    else:
        import sentence_transformers.sentence_transformer.evaluation  # noqa: F401

        qrels = {str(i): {str(i): 1} for i in range(len(queries))}

        def run():
            return sentence_retrieval(queries, gallery, qrels, torch.float32)

    with Peak() as memory:
        start = time.perf_counter()
        found = run()
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": memory.peak - memory.start, "found": found}))


def one_way(queries, gallery, target):
    """CLIP_benchmark's recall of queries in a gallery: half of what it does for pairs."""
    from clip_benchmark.metrics.zeroshot_retrieval import batchify, recall_at_k

    queries, gallery = torch.from_numpy(queries), torch.from_numpy(gallery)
    scores = queries @ gallery.t()
    positive = torch.zeros_like(scores, dtype=torch.bool)
    positive[torch.arange(len(scores)), torch.from_numpy(target)] = True
    return {
        f"recall@{k}": (batchify(recall_at_k, scores, positive, 64, "cpu", k=k) > 0)
        .double()
        .mean()
        .item()
        for k in (1, 5, 10)
    }


def encode(folder, texts, output):
    from sentence_transformers import SentenceTransformer

    with open(texts) as file:
        rows = SentenceTransformer(folder, device="cpu").encode(json.load(file))
    np.save(output, rows / np.linalg.norm(rows, axis=1, keepdims=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", nargs=2, metavar=("IN", "OUT"))
    parser.add_argument("--time", nargs=2, metavar=("PEER", "IN"))
    parser.add_argument("--texts", nargs=3, metavar=("FOLDER", "TEXTS", "OUT"))
    parser.add_argument("--check", action="store_true", help="whether all can be imported")
    given = parser.parse_args()
    if given.check:
        import clip_benchmark.metrics.zeroshot_classification  # noqa: F401
        import pytrec_eval  # noqa: F401
        import sentence_transformers.sentence_transformer.evaluation  # noqa: F401
    torch.set_grad_enabled(False)
    for action, arguments in ((values, given.values), (timed, given.time), (encode, given.texts)):
        if arguments:
            action(*arguments)


if __name__ == "__main__":
    main()
