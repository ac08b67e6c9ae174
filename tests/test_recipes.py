"""Every shipped recipe resolves, and a change of one shows in review as a change of its dump.

After a wanted change: ``python -m pytest tests/test_recipes.py --rewrite-golden``.
"""

import json
import pathlib

import pytest

from contrastive import config as config_lib
from contrastive.data.published import PICTURES
from contrastive.errors import ConfigError, UserError
from contrastive.recipe import check_resumable, load_recipe, read_recipe, write_recipe

ROOT = pathlib.Path(__file__).parents[1]
RECIPES = (
    *("emoji.py:clip", "emoji.py:siglip", "emoji.py:info_nce", "emoji.py:minilm"),
    *("emoji.py:naflex", "emoji.py:small"),
    *("clip.py:b32", "clip.py:b16", "clip.py:l14", "clip.py:h14"),
    *("siglip.py:b16", "siglip.py:l16", "siglip.py:so400m", "siglip.py:g"),
    *("clip.py:b32,laion400m", "clip.py:l14,datacomp1b", "clip.py:b16,cc12m"),
    *("siglip.py:b16,webli", "siglip.py:so400m,laion2b", "siglip2.py:b16,webli"),
    *("siglip2.py:b16", "siglip2.py:l16", "siglip2.py:so400m", "siglip2.py:gopt"),
    *("lit.py:b16", "lit.py:l16", "lit.py:b16,cc12m", "flip.py:b16", "flip.py:l16", "flip.py:l14"),
    *("flip.py:h14", "flip.py:l16-unmasked", "flip.py:l14,laion400m"),
    *("mnrl.py:transformer,cls", "mnrl.py:minilm", "mnrl.py:minilm,last"),
    *("mnrl.py:bag", "mnrl.py:transformer", "e5.py", "gte.py"),
    *("simcse.py:unsup", "simcse.py:unsup,transformer", "simcse.py:sup"),
    *(f"sentence_bert.py:{objective}" for objective in ("softmax", "triplet", "cross", "rank")),
    *("ance.py", "ance.py:bm25"),
    *("dpr.py:debian", "dpr.py:bm25", "dpr.py:wordnet"),
    *("simclr.py:artists", "simclr.py:augmented", "simclr.py:resnet", "simclr.py:fashion"),
    "simclr.py:openmoji",
    *("moco.py:v2", "moco.py:v3"),
)


@pytest.mark.parametrize("spec", RECIPES)
def test_shipped_recipes_are_what_the_golden_dump_says(spec, request):
    recipe = load_recipe(str(ROOT / "configs" / spec))
    dump = json.dumps(config_lib.to_dict(recipe), indent=2) + "\n"
    name = spec.replace(".py:", "-").removesuffix(".py")
    golden = ROOT / "tests" / "golden" / f"{name}.json"
    if request.config.getoption("--rewrite-golden"):
        golden.write_text(dump)
    assert golden.read_text() == dump


@pytest.mark.parametrize("data", PICTURES)
@pytest.mark.parametrize(
    "recipe", ["clip.py:b16", "siglip.py:b16", "siglip2.py:b16", "flip.py:b16"]
)
def test_published_sets_go_with_the_recipes_for_pods(recipe, data):
    found = load_recipe(str(ROOT / "configs" / f"{recipe},{data}")).data
    assert data in found.source
    assert found.kind == ("tfds" if data == "webli" else "webdataset")
    assert found.augment.geometric == recipe.startswith("flip")  # mirrored


def test_unknown_sets_and_towers_are_answered_with_the_known():
    with pytest.raises(ConfigError, match="'laion5b'; known are laion400m"):
        load_recipe(str(ROOT / "configs" / "clip.py:b16,laion5b"))
    with pytest.raises(ConfigError, match="'l32'; known are b16, l16"):
        load_recipe(str(ROOT / "configs" / "lit.py:l32"))


def test_a_bag_has_no_pooling_to_choose():
    with pytest.raises(ConfigError, match="a bag is a sum"):
        load_recipe(str(ROOT / "configs" / "mnrl.py:bag,cls"))
    with pytest.raises(ConfigError, match="pool by mean, cls, max, last"):
        load_recipe(str(ROOT / "configs" / "mnrl.py:minilm,first"))


def test_a_recipe_survives_the_way_through_its_file(tmp_path):
    recipe = load_recipe(str(ROOT / "configs" / "emoji.py:siglip"))
    write_recipe(tmp_path, recipe)
    assert read_recipe(tmp_path) == recipe


@pytest.mark.parametrize("content", [b"{", b"null", b"3", b"\xff\xfe\x00"])
def test_damaged_settings_of_a_run_are_one_sentence(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        read_recipe(tmp_path)


@pytest.mark.parametrize(
    "override, words",
    [
        ("--config.loss.bias_init=-5.0", "config.loss.bias_init"),
        ("--config.loss.block_rows=64", "config.loss.exchange"),
        ("--config.loss.scale_init=200.0", "scale_init = 200 is above the limit"),
        ("--config.loss.max_scale=10.0", r"scale_init = 14.2857 is above the limit"),
        ("--config.stop_at=5000", "config.stop_at"),
        ("--config.model.image.kind=vti", "did you mean 'vit'"),
        ("--config.data.csv.imag=x", "did you mean 'image'"),
        ("--config.loss.name=clop", "did you mean 'clip'"),
        ("--config.mesh.data=0", "config.mesh"),
        ("--config.train.profile=4-5", "has to be START:STOP"),
        ("--config.train.profile=9:3", "has to be START:STOP"),
        ("--config.train.profile=2000:2001", "begins after the last step"),
        ("--config.optimizer.accumulate=2000", "nothing would be learned"),
        ("--config.seed=4294967296", "config.seed .* between 0 and"),
        ("--config.total_steps=3000000000", "config.total_steps .* less than"),
        ("--config.optimizer.weight_decay=1e999", "weight_decay = inf has to be a finite number"),
        (f"--config.optimizer.eps=1{'0' * 400}", "config.optimizer.eps = inf has to be a finite"),
        ("--config.optimizer.multipliers=(('x',1e999),)", r"multipliers.* = inf has to be a fin"),
        ("--config.optimizer.final_learning_rate=1.0", "is above the peak"),
        ("--config.train.microbatches=0", "config.train.microbatches"),
        ("--config.train.watchdog_seconds=0.0", "config.train.watchdog_seconds"),
        ("--config.train.patience_seconds=-1.0", "config.train.patience_seconds"),
        ("--config.model.shared=false", "config.model.shared has no effect"),
        ("--config.model.head.layers=2", "config.model.head has no effect"),
        ("--config.data.query_prefix=q", "config.data.query_prefix has no effect"),
        ("--config.momentum.queue=256", "config.momentum.decay is None"),
        ("--config.momentum.decay=0.9", "config.loss.name has to be 'info_nce'"),
        ("--config.loss.name=triplet", "needs negatives"),
        ("--config.checkpoint.best=evaluation/x --config.eval.every=0", "needs evaluations"),
        ("--config.checkpoint.best=evaluation/x --config.eval.every=100", "multiple of the other"),
        ("--config.checkpoint.best=loss --config.log.every=7", "every 7 steps .config.log.every"),
        ("--config.checkpoint.best=loss --config.checkpoint.every=0", "multiple of the other"),
    ],
)
def test_contradictions_are_named(override, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe(str(ROOT / "configs" / "emoji.py:clip"), override.split())


@pytest.mark.parametrize(
    "spec, override, words",
    [
        ("moco.py:v2", "--config.momentum.queue=1000", "multiple of config.batch_size = 256"),
        ("moco.py:v3", "--config.momentum.decay=none", "config.momentum has settings"),
        ("moco.py:v3", "--config.model.predictor.output=64", "predictor.output has to be 0"),
        ("simclr.py", "--config.model.predictor.layers=2", "config.momentum.decay is None"),
        ("simclr.py", "--config.model.text.width=64", "config.model.text has no effect"),
        ("simclr.py", "--config.data.check=during", "config.data.views.second = 'content' needs"),
        (
            "simclr.py",
            "--config.data.views.small=2 --config.model.image.kind=vit",
            "other towers take pictures of one size",
        ),
        ("simclr.py", "--config.data.views.small=2 --config.loss.name=siglip", "by a softmax"),
        ("simcse.py:sup", "--config.loss.name=gte", "takes no negatives"),
        ("e5.py", "--config.loss.name=classifier --config.loss.scale_init=none", "fields.labels"),
        ("sentence_bert.py", "--config.loss.name=clip", "reads no labels"),
        ("sentence_bert.py", "--config.loss.scale_init=20.0", "has no scale"),
        ("sentence_bert.py", "--config.model.head.layers=2", "a layer of its own"),
        ("sentence_bert.py:cross", "--config.model.shared=false", "needs one tower"),
        ("sentence_bert.py:rank", "--config.data.joined=false", "scores joined texts"),
        ("sentence_bert.py:rank", "--config.data.negatives=0", "set config.data.negatives"),
        (
            "e5.py",
            "--config.data.joined=true --config.data.query_length=none",
            "makes one row of them",
        ),
        ("e5.py", "--config.loss.matryoshka=(64,32)", "larger than the one before"),
        ("e5.py", "--config.loss.matryoshka=(64,192)", "prefixes have to be shorter"),
        ("e5.py", "--config.loss.matryoshka_weights=(1.0,)", "a positive number for each"),
        ("moco.py:v2", "--config.loss.matryoshka=(16,)", "does not go with config.momentum"),
        ("ance.py", "--config.data.negatives=0", "mined negatives need a place"),
        ("ance.py", "--config.data.mined.start=150", "a multiple of config.data.mined.every"),
        ("ance.py", "--config.data.mined.every=0", "config.data.mined has settings"),
        ("ance.py", "--config.data.mined.window=5", "takes 20 passages from rank 6 to 5"),
        ("ance.py", "--config.data.check=during", "mined negatives need"),
        ("sentence_bert.py", "--config.loss.matryoshka=(16,)", "which reads whole rows"),
        ("e5.py", "--config.model.image.epsilon=1e-4", "config.model.image has no effect"),
    ],
)
def test_contradictions_of_other_pairs_are_named(spec, override, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe(str(ROOT / "configs" / spec), override.split())


@pytest.mark.parametrize(
    "saved, measured", [(225, 225), (450, 225), (225, 450)]
)  # fmt: skip
def test_cadences_at_which_the_best_checkpoint_is_found(saved, measured):
    overrides = [f"--config.checkpoint.every={saved}", f"--config.eval.every={measured}"]
    best = "--config.checkpoint.best=evaluation/x"
    load_recipe(str(ROOT / "configs" / "emoji.py:clip"), [best, *overrides])


def test_changing_the_tower_on_the_command_line():
    overrides = ["--config.model.image.kind=vit", "--config.model.image.patch_size=8"]
    recipe = load_recipe(str(ROOT / "configs" / "emoji.py:clip"), overrides)
    assert recipe.model.image.kind == "vit"
    assert recipe.model.image.patch_size == 8


@pytest.mark.parametrize(
    "free", ["stop_at=5", "eval.every=7", "mesh.data=1", "data.threads=0", "train.microbatches=2"]
)
def test_what_may_differ_on_resume(free):
    spec = str(ROOT / "configs" / "emoji.py:clip")
    check_resumable(load_recipe(spec), load_recipe(spec, [f"--config.{free}"]), "run")


@pytest.mark.parametrize(
    "bound", ["seed=1", "batch_size=128", "total_steps=7000", "loss.mask_duplicates=false"]
)
def test_what_may_not_differ_on_resume(bound):
    spec = str(ROOT / "configs" / "emoji.py:clip")
    with pytest.raises(ConfigError, match=bound.partition("=")[0]):
        check_resumable(load_recipe(spec), load_recipe(spec, [f"--config.{bound}"]), "run")
