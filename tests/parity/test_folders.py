"""Pictures, token ids and exported folders against the libraries; needs `make parity`."""

import pathlib
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import contrastive
from contrastive.cli import main
from contrastive.data.config import TokenizerConfig
from contrastive.data.picture_config import ResizeConfig
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


@pytest.mark.parametrize(
    "name,form,flag",
    [
        ("clip", "huggingface", "--read-back"),
        ("siglip", "huggingface", "--read-back"),
        ("open_clip", "open_clip", "--read-back-open-clip"),
    ],
)
def test_exported_folders_are_loaded_there(name, form, flag, tmp_path):
    source, native, out = (tmp_path / part for part in ("source", "native", "out"))
    shutil.copytree(FIXTURES / name, source)
    give_tokenizer(source)
    assert main(["import", str(source), f"--output={native}"]) == 0
    assert main(["export", str(native), f"--format={form}", f"--output={out}"]) == 0
    subprocess.run([PYTHON, SCRIPT, flag, out], check=True, timeout=300)
    theirs = dict(np.load(tmp_path / "out.npz"))
    model = contrastive.load(native)
    texts = texts_of_the_script()
    np.testing.assert_array_equal(model.tokenizer.encode(texts), theirs["ids"])
    np.testing.assert_allclose(model.encode_text(texts), normalize(theirs["text"]), atol=1e-5)
    towers = contrastive.loading.open_model(native, devices=jax.local_devices()[:1]).towers
    pixels = jnp.asarray(theirs["pixels"].transpose(0, 2, 3, 1))
    rows = normalize(jax.jit(lambda p: towers.image(p))(pixels))
    np.testing.assert_allclose(rows, normalize(theirs["image"]), atol=1e-5)
