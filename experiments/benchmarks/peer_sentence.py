"""sentence-transformers on PyTorch; runs in the second environment (`make parity`).

    python experiments/benchmarks/peer_sentence.py make KIND SEED FOLDER [--width=8 ...]
    python experiments/benchmarks/peer_sentence.py gradients FOLDER
    python experiments/benchmarks/peer_sentence.py encode FOLDER TEXTS.json OUT.npy

``make`` writes a tiny model of a kind (bert, roberta, modernbert) with random parameters, none of
which has its usual start value, as sentence-transformers saves it. ``gradients`` writes
``expected.npz`` beside one: token ids, unit rows, and the gradient of a sum over them with respect
to every tensor. ``encode`` is what a user of that library calls. It imports nothing of this
project.
"""

import argparse
import json
import math
import pathlib
import tempfile

import numpy as np
import tokenizers
import torch  # pyright: ignore[reportMissingImports]  in the second environment
from peer_open_clip import declare_operators  # pyright: ignore[reportMissingImports]  beside it
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

_DECLARED = declare_operators()  # torchvision is without its own

import transformers  # noqa: E402 # pyright: ignore[reportMissingImports]
from sentence_transformers import SentenceTransformer  # noqa: E402 # pyright: ignore
from sentence_transformers import models as modules  # noqa: E402 # pyright: ignore

TEXTS = (
    "A small bird sits on a wire.",
    "Two people play chess in the park while it rains on the old stone tables.",
    "rain",
    "The ferry leaves at noon; nobody knows where it goes.",
    "",
)
# Padding, begin, end, unknown, as each kind calls them, in the order of their ids.
MARKERS = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>"),
    "modernbert": ("<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]"),
}
ENDS = {"bert": ("[CLS]", "[SEP]"), "roberta": ("<s>", "</s>"), "modernbert": ("[CLS]", "[SEP]")}
PAD = {"bert": "[PAD]", "roberta": "<pad>", "modernbert": "[PAD]"}


def make_tokenizer(kind: str):
    """A vocabulary of a few dozen pieces, of the form that the kind has."""
    if kind == "bert":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=list(MARKERS[kind]))
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=70, special_tokens=list(MARKERS[kind]))
    backend.train_from_iterator(TEXTS, trainer)
    begin, end = ENDS[kind]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(name, backend.token_to_id(name)) for name in (begin, end)],
    )
    names = {"cls_token": begin, "sep_token": end, "pad_token": PAD[kind]}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, **names, model_max_length=40
    )


def make_encoder(kind: str, tokenizer, args: argparse.Namespace):
    """The encoder, with parameters that no implementation could leave out unseen."""
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": args.width,
        "num_hidden_layers": args.depth,
        "num_attention_heads": args.heads,
        "intermediate_size": args.hidden,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind == "modernbert":
        config = transformers.ModernBertConfig(
            **common,
            max_position_embeddings=64,
            local_attention=6,
            global_attn_every_n_layers=2,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
        )
        model = transformers.ModernBertModel(config)
    elif kind == "roberta":
        config = transformers.RobertaConfig(
            **common, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5
        )
        model = transformers.RobertaModel(config, add_pooling_layer=False)
    else:
        config = transformers.BertConfig(**common, max_position_embeddings=40)
        model = transformers.BertModel(config, add_pooling_layer=False)
    scatter(model)
    return model


def scatter(model) -> None:
    """Random values for every parameter."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn_like(value)
            if value.ndim > 1:
                value.copy_(noise * (1.5 / math.sqrt(value.shape[-1])))
            else:
                value.copy_(0.3 * noise + (0.0 if name.endswith("bias") else 1.0))


def make(args: argparse.Namespace) -> None:
    """A sentence-transformers folder."""
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer(args.kind)
    model = make_encoder(args.kind, tokenizer, args)
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        encoder = modules.Transformer(plain)
    parts = [encoder, modules.Pooling(args.width, pooling_mode=args.pooling)]
    if args.dense:
        parts.append(modules.Dense(args.width, args.dense))
        parts.append(modules.LayerNorm(args.dense))
    for part in parts[1:]:
        scatter(part)
    parts.append(modules.Normalize())
    SentenceTransformer(modules=parts, device="cpu").save(str(args.folder), create_model_card=False)
    for file in args.folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    gradients(args)


def gradients(args: argparse.Namespace) -> None:
    """Ids, rows and gradients of a folder.

    The gradients are computed in float64: in float32 those of queries and keys, which are small,
    are off by more than a ten-thousandth of themselves.
    """
    model = SentenceTransformer(str(args.folder), device="cpu").eval()
    features = model.preprocess(list(TEXTS))
    encoded = model.encode(list(TEXTS))
    model = model.double()
    rows = model({k: v for k, v in features.items() if torch.is_tensor(v)})["sentence_embedding"]
    pull = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    (torch.sin(rows) * pull.double()).sum().backward()
    arrays = {
        "ids": features["input_ids"].numpy(),
        "mask": features["attention_mask"].numpy(),
        "rows": rows.detach().numpy().astype(np.float32),
        "pull": pull.numpy(),
        "encoded": encoded,
    }
    arrays |= {f"gradient/{name}": g for name, g in named_gradients(model)}
    np.savez_compressed(args.folder / "expected.npz", **arrays)


def named_gradients(model):
    """Under the names that the tensors have in their files, with the folder before them."""
    for index, module in enumerate(model):
        inner = module.model if index == 0 else module
        prefix = "" if index == 0 else f"{index}_{type(module).__name__}/"
        for name, value in inner.named_parameters():
            if value.grad is not None:
                yield prefix + name, value.grad.numpy().astype(np.float32)


def encode(args: argparse.Namespace) -> None:
    """Rows of texts, as the library gives them."""
    model = SentenceTransformer(str(args.folder), device="cpu")
    texts = json.loads(args.texts.read_text())
    np.save(args.out, model.encode(texts, batch_size=32, show_progress_bar=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("make")
    made.add_argument("kind", choices=list(MARKERS))
    made.add_argument("seed", type=int)
    made.add_argument("folder", type=pathlib.Path)
    for name, value in (("width", 8), ("depth", 3), ("heads", 2), ("hidden", 12), ("dense", 0)):
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--pooling", default="mean")
    made.set_defaults(call=make)
    given = commands.add_parser("gradients")
    given.add_argument("folder", type=pathlib.Path)
    given.set_defaults(call=gradients)
    encoded = commands.add_parser("encode")
    for name in ("folder", "texts", "out"):
        encoded.add_argument(name, type=pathlib.Path)
    encoded.set_defaults(call=encode)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
