"""Pictures, token ids and exported folders against the libraries; needs `make parity`."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

import contrastive
from contrastive.cli import main
from contrastive.data.picture_config import ResizeConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import Tokenizer, read_tokenizer
from contrastive.data.transforms import shaped
from contrastive.geometry import normalize
from contrastive.pretrained import huggingface
from contrastive.pretrained.source import Source
from tests.pretrained.test_families import FIXTURES, give_tokenizer

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
SCRIPT = ROOT / "tests" / "parity" / "peer_weights.py"
FLOOR = ResizeConfig(centre="floor")
RULES = {
    "clip": ("clip", FLOOR),
    "clip-share": ("clip", ResizeConfig(centre="floor", share=0.8)),
    "siglip": ("siglip", ResizeConfig()),
    "siglip-bilinear": ("siglip", ResizeConfig(interpolation="bilinear")),
    "open_clip-shortest": ("shortest", ResizeConfig()),
    "open_clip-squash": ("stretch", ResizeConfig()),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`"),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    subprocess.run([PYTHON, SCRIPT, root, "pictures", "clip_tokens"], check=True, timeout=300)
    return root


@pytest.mark.parametrize("name", RULES)
def test_C13_pictures_are_equal_to_the_pixel(reference, name):
    arrays = dict(np.load(reference / "pictures" / "reference.npz"))
    rule, how = RULES[name]
    sizes = [key.partition("/")[2] for key in arrays if key.startswith("picture/")]
    assert len(sizes) == 7
    for size in sizes:
        image = Image.fromarray(arrays[f"picture/{size}"])
        ours = np.asarray(shaped(image, 20, rule, how))
        np.testing.assert_array_equal(ours, arrays[f"{name}/{size}"], err_msg=size)


def texts_of_the_script():
    """The list ``TEXTS`` of the script, which this environment cannot import."""
    import ast

    tree = ast.parse(SCRIPT.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TEXTS":
            return [eval(compile(ast.Expression(item), "x", "eval")) for item in node.value.elts]
    raise AssertionError("there is no list TEXTS")


def test_token_ids_are_equal(reference):
    folder = reference / "clip_tokens"
    arrays = dict(np.load(folder / "reference.npz"))
    found = huggingface.texts(Source(folder, folder / "none"))
    ours = Tokenizer(found.vocabulary, length=77, config=found.config)
    np.testing.assert_array_equal(ours.encode(texts_of_the_script()), arrays["ids"])
    own = read_tokenizer(None, length=77, config=TokenizerConfig(preset="clip"))
    plain = ["<|" not in text for text in texts_of_the_script()]  # a marker in a text stays one
    ids = own.encode(texts_of_the_script())
    np.testing.assert_array_equal(ids[plain], arrays["open_clip"][plain])


EXPORTED = {
    **dict.fromkeys(("clip", "siglip", "siglip2", "naflex-texts"), "huggingface"),
    **dict.fromkeys(("vit", "resnet", "resnet-basic", "convnext"), "huggingface"),
    **dict.fromkeys(("open_clip", "open_clip-text", "open_clip-resnet"), "open_clip"),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Models of the libraries, imported, exported, and read again by the libraries: a folder each
    with ours, ``NAME``, and beside it what they make of theirs, ``NAME-out.npz``."""
    root = tmp_path_factory.mktemp("exported")
    subprocess.run([PYTHON, SCRIPT, root / "source", *EXPORTED], check=True, timeout=600)
    for name, form in EXPORTED.items():
        source, native, out = root / "source" / name, root / name, root / f"{name}-out"
        if name in ("siglip2", "naflex-texts"):
            shutil.copytree(FIXTURES / "texts" / "siglip2", source, dirs_exist_ok=True)
        elif name not in ("vit", "resnet", "resnet-basic", "convnext"):
            give_tokenizer(source, 99)
        assert main(["import", str(source), f"--output={native}"]) == 0
        assert main(["export", str(native), f"--format={form}", f"--output={out}"]) == 0
    for form, flag in (("huggingface", "--read-back"), ("open_clip", "--read-back-open-clip")):
        folders = [root / f"{name}-out" for name, f in EXPORTED.items() if f == form]
        subprocess.run([PYTHON, SCRIPT, flag, *folders], check=True, timeout=600)
    return root


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_folders_are_loaded_there(exported, name):
    """From files to rows: their loader, preparation, tokenizer and towers on what was exported."""
    theirs = dict(np.load(exported / f"{name}-out.npz"))
    model = contrastive.load(exported / name)
    pictures = [theirs[f"picture/{i}"] for i in range(7)]
    rows = model.encode_image(pictures)
    np.testing.assert_allclose(rows, normalize(theirs["image"]), atol=1e-5)
    assert np.abs(rows[0] - rows[1:]).max(axis=1).min() > 1e-4  # of other pictures
    if "text" in theirs:
        texts = texts_of_the_script()
        np.testing.assert_array_equal(model.tokenizer.encode(texts), theirs["ids"])
        rows = model.encode_text(texts)
        np.testing.assert_allclose(rows, normalize(theirs["text"]), atol=1e-5)
