"""Plans of pairs of texts and of views: the batch that a loader would give, and a queue."""

import json

import jax
import pytest

from contrastive import config as config_lib
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.mesh import MeshConfig, make_mesh
from contrastive.planning.compile import abstract_batch
from contrastive.planning.plan import make_plan
from contrastive.planning.topology import find_topology
from contrastive.recipe import Recipe


@pytest.fixture
def texts(tiny, tmp_path):
    rows = [{"query": f"q {i}", "answer": f"a {i}", "negatives": [f"n {i}"]} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny.data = {"source": str(tmp_path / "a.jsonl"), "pairs": "texts", "negatives": 2}
    tiny.model = {"embedding_dim": 16, "text": {"kind": "bag", "width": 16}}
    tiny.loss = {"name": "info_nce"}
    return tiny


@pytest.fixture
def views(tiny):
    del tiny.model.text, tiny.data.text_length, tiny.data.tokenizer
    tiny.data.pairs = "views"
    tiny.model.head = {"layers": 2, "output": 8}
    tiny.loss = {"name": "info_nce"}
    return tiny


def check_shapes(recipe):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    source = open_source(recipe.data, "train")
    tokenizer = load_tokenizer(recipe.data, source)
    loader = BatchLoader(source, recipe.data, tokenizer, batch_size=recipe.batch_size, seed=0)
    batch = next(loader)
    loader.close()
    del batch["example"]  # stays on the host
    planned = abstract_batch(recipe, mesh)
    assert {name: (x.shape, x.dtype) for name, x in planned.items()} == {
        name: (x.shape, x.dtype) for name, x in batch.items()
    }


@pytest.mark.parametrize("check", ["before", "during"])
def test_batches_of_texts_are_as_planned(texts, check):
    texts.data.query_length = 5
    check_shapes(config_lib.resolve(Recipe, texts, [f"--config.data.check={check}"]))


@pytest.mark.parametrize("small", ["0", "2"])
def test_batches_of_views_are_as_planned(views, small):
    size = ["--config.data.views.small_size=8"] if small != "0" else []
    check_shapes(config_lib.resolve(Recipe, views, [f"--config.data.views.small={small}", *size]))


def test_a_queue_counts_as_state_and_is_cut(views):
    machine = find_topology("cpu:8")
    plain = make_plan(config_lib.resolve(Recipe, views, []), machine).to_json()
    momentum = ["--config.momentum.decay=0.9", "--config.momentum.queue=8192"]
    found = make_plan(config_lib.resolve(Recipe, views, momentum), machine).to_json()
    assert found["fits"]
    assert found["parameters"] == plain["parameters"]
    # Keys, two words of an id and a weight for each of the 1,024 of a device; one more model.
    queue = 1024 * (8 + 2 + 1) * 4
    copy = plain["parameters"] * 4
    assert found["state_bytes_per_device"] - plain["state_bytes_per_device"] == queue + copy
    assert found["forward_flops_per_example"] > plain["forward_flops_per_example"]


def test_texts_are_planned(texts):
    found = make_plan(config_lib.resolve(Recipe, texts, []), find_topology("cpu:8")).to_json()
    assert found["fits"]
    assert found["parameters"] > 16 * 300
