"""Eight simulated devices; in the library, promotion of dtypes or ranks is an error."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

from jaxtyping import install_import_hook

install_import_hook("contrastive", "beartype.beartype")

import csv  # noqa: E402  after the devices and the hook are set
import itertools  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from ml_collections import ConfigDict  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402
from tqdm import tqdm  # noqa: E402

tqdm.monitor_interval = 0  # its thread stumbles over bars that end meanwhile, rarely
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def unchecked():
    """Switches the type checks of the tests off: users get the library's own messages."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def count_products():
    """Counts the matrix products written down in a jaxpr and its parts, a loop's body once;
    with ``shape`` those with a result of that shape."""

    def count(jaxpr, shape=None) -> int:
        found = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                found += shape is None or equation.outvars[0].aval.shape == shape
            for value in equation.params.values():
                for inner in value if isinstance(value, (tuple, list)) else [value]:
                    inner = getattr(inner, "jaxpr", inner)
                    found += count(inner, shape) if hasattr(inner, "eqns") else 0
        return found

    return count


def pytest_addoption(parser):
    """``--rewrite-golden`` accepts what the golden tests now see."""
    parser.addoption("--rewrite-golden", action="store_true")


# --- A tiny set of pictures and captions, and a recipe that trains on it in seconds ---

COLOURS = ("red", "green", "blue", "black", "orange", "purple")
SHAPES = ("circle", "square", "bar", "cross")


def draw(colour: str, shape: str, shift: int) -> Image.Image:
    image = Image.new("RGB", (24, 24), "white")
    pen = ImageDraw.Draw(image)
    x = 4 + shift
    if shape == "circle":
        pen.ellipse((x, 4, x + 14, 18), fill=colour)
    elif shape == "square":
        pen.rectangle((x, 4, x + 14, 18), fill=colour)
    elif shape == "bar":
        pen.rectangle((x, 9, x + 14, 13), fill=colour)
    else:
        pen.line((x, 4, x + 14, 18), fill=colour, width=3)
        pen.line((x, 18, x + 14, 4), fill=colour, width=3)
    return image


@pytest.fixture(scope="session")
def shapes_csv(tmp_path_factory):
    """48 pictures, 24 captions: each caption has two pictures, so duplicates are in the batches."""
    folder = tmp_path_factory.mktemp("shapes")
    with open(folder / "pairs.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["image", "caption"])
        for colour, shape, shift in itertools.product(COLOURS, SHAPES, (0, 3)):
            name = f"{colour}-{shape}-{shift}.png"
            draw(colour, shape, shift).save(folder / name)
            writer.writerow([name, f"a {colour} {shape}"])
    return folder / "pairs.csv"


@pytest.fixture
def tiny(tiny_recipe):
    """The recipe as a ConfigDict; tests change what they are about."""
    return tiny_recipe.copy_and_resolve_references()


@pytest.fixture(scope="session")
def tiny_recipe(shapes_csv):
    """The recipe for fixtures that outlive a test: they change a copy."""
    config = ConfigDict()
    config.name = "shapes"
    config.total_steps = 8
    config.batch_size = 16
    config.data = {"source": str(shapes_csv), "image_size": 16, "text_length": 8}
    config.data.tokenizer = {"vocabulary_size": 300}
    config.model = {
        "embedding_dim": 16,
        "image": {"kind": "conv", "widths": (8, 16)},
        "text": {"kind": "transformer", "width": 16, "heads": 2, "depth": 1, "dropout": 0.1},
    }
    config.optimizer = {"learning_rate": 3e-3, "warmup_steps": 2}
    config.checkpoint = {"every": 4}
    config.eval = {"every": 0, "baselines": False}
    config.log = {"every": 1, "tensorboard": False}
    return config
