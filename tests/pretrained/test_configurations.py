"""Configurations that say odd things: always a sentence, never a traceback, and never for long."""

import json

import numpy as np
import pytest

from contrastive.errors import UserError, WeightsError
from contrastive.pretrained.importing import import_weights, recognise
from contrastive.pretrained.source import open_source
from contrastive.pretrained.tensors import write_safetensors
from tests.pretrained.test_families import configure

PICTURES, TEXTS = "preprocessor_config.json", "tokenizer_config.json"
OPEN_CLIP = "open_clip_config.json"


def describe(folder):
    source = open_source(folder)
    return recognise(source).describe(source)


@pytest.mark.parametrize(
    "name,file,key,value",
    [
        ("clip", "config.json", "text_config__hidden_size", 0),
        ("clip", "config.json", "vision_config__image_size", 0),
        ("clip", "config.json", "vision_config__num_hidden_layers", -1),
        ("clip", "config.json", "vision_config", "x"),
        ("naflex", "config.json", "vision_config__num_patches", -1),
        ("naflex", PICTURES, "max_num_patches", "x"),
        ("naflex", PICTURES, "max_num_patches", None),
        ("naflex", PICTURES, "image_mean", [None, 0.5, 0.5]),
        ("naflex", PICTURES, "image_std", ["x", 0.5, 0.5]),
        ("open_clip", OPEN_CLIP, "model_cfg__embed_dim", "x"),
        ("open_clip", OPEN_CLIP, "model_cfg__vision_cfg__width", 0),
        ("open_clip", OPEN_CLIP, "model_cfg__vision_cfg__head_width", 0),
        ("open_clip", OPEN_CLIP, "preprocess_cfg", "x"),
        ("open_clip", OPEN_CLIP, "preprocess_cfg", {"mean": ["x", 0, 0]}),
        ("bert", "1_Pooling/config.json", "pooling_mode", 1.5),
        ("bert", "1_Pooling/config.json", "pooling_mode", [["cls"]]),
        ("bert", "2_Dense/config.json", "out_features", "x"),
        ("bert", TEXTS, "model_max_length", "x"),
        ("bert", TEXTS, "model_max_length", -1),
    ],
)
def test_odd_values(copied, name, file, key, value):
    folder = copied(name)
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)  # it would decide the length
    describe(folder)
    configure(folder, file, **{key: value})
    with pytest.raises(WeightsError, match=rf"{key.rpartition('__')[2]}|pooling by"):
        describe(folder)


@pytest.mark.parametrize("value", [None, 1e30, 10**30, 40])
def test_a_tokenizer_may_have_no_limit(copied, value):
    folder = copied("bert")
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)
    configure(folder, TEXTS, model_max_length=value)
    limit = describe(folder).model.text.length
    assert describe(folder).data.text_length == min(limit, value or limit)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_sizes": ["a"]},
        {"hidden_sizes": []},
        {"depths": [1, 0]},
        {"depths": [10**12, 1]},
        {"depths": [1, 3]},
        {"layer_type": "wide"},
        {"embedding_size": 0},
    ],
)
def test_odd_residual_networks(tmp_path, changes):
    config = {"model_type": "resnet", "hidden_sizes": [8, 16], "depths": [1, 1]}
    tensors = {name: np.zeros(1, np.float32) for name in "xyz"}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(tmp_path).model.image.widths == (8, 16)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(WeightsError, match=next(iter(changes))):
        describe(tmp_path)


@pytest.mark.parametrize(
    "name,key", [("clip", "text_config__num_hidden_layers"), ("bert", "num_hidden_layers")]
)
def test_a_depth_that_no_file_has_is_said_at_once(copied, name, key):
    folder = copied(name)
    configure(folder, **{key: 10**12})
    with pytest.raises(UserError, match=r"missing: .* and \d+ more"):
        import_weights(folder)
