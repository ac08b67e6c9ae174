"""Folders of text encoders: what comes with the weights, and what is refused.

The committed models were written by sentence-transformers (`experiments/benchmarks/peer_sentence.py
make`); rows and gradients are compared in `tests/parity/test_sentence.py`.
"""

import json

import jax
import numpy as np
import pytest
import tokenizers
from flax import nnx

import contrastive
from contrastive import config as config_lib
from contrastive.cli import main
from contrastive.commands.train import train
from contrastive.commands.weights import import_model
from contrastive.errors import ConfigError, UserError, WeightsError
from contrastive.pretrained.exporting import export_weights, parameters
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.tensors import read_tensors, write_safetensors
from contrastive.recipe import Recipe
from contrastive.towers import DenseConfig, EncoderConfig, LayerNormConfig
from contrastive.warm_start import _check_heads

TEXTS = ["A small bird sits on a wire.", "rain", "The ferry leaves at noon."]


def edit(folder, name, **changes):
    """Changes keys of a JSON file of a folder; None removes one."""
    file = folder / name
    content = json.loads(file.read_text()) if file.exists() else {}
    content = {k: v for k, v in (content | changes).items() if v is not None}
    file.write_text(json.dumps(content))


def edit_tensors(file, change):
    write_safetensors(file, change(read_tensors(file)))


def settings(folder):
    return import_weights(folder).settings


def test_a_folder_of_an_encoder_encodes_texts_and_nothing_else(copied):
    model = contrastive.load(copied("bert"))
    rows = model.encode_text(TEXTS)
    assert rows.shape == (3, 6)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    with pytest.raises(UserError, match="this model has no image tower; it encodes texts only"):
        model.encode_image(np.zeros((224, 224, 3), np.uint8))


def test_long_and_short_texts_keep_their_order(copied):
    """They go through the tower sorted by length and padded as little as possible."""
    model = contrastive.load(copied("bert"), batch_size=2)
    texts = ["rain " * 30, "rain", "a small bird " * 5, "chess", "the old stone tables"]
    together = model.encode_text(texts)
    for text, row in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.encode_text(text)[0], row, atol=1e-6)
    assert np.abs(together[1] - together[3]).max() > 1e-3


def test_a_text_goes_on_behind_an_end_token_inside_it(copied):
    """Alone or beside a longer one, and whether as text or as ids."""
    model = contrastive.load(copied("bert"))
    text = "rain [SEP] " + "chess " * 34
    ids = model.tokenizer.encode([text])
    assert (ids[0] == model.tokenizer.end_id).sum() == 2
    for rows in (model.encode_text([text]), model.encode_text([text, "rain " * 40])):
        np.testing.assert_allclose(rows[0], model.encode_text(ids)[0], atol=1e-6)


def test_short_texts_are_not_padded_to_the_longest_that_there_could_be(copied, monkeypatch):
    model, seen = contrastive.load(copied("bert")), []
    encode = type(model)._encode

    def watched(self, view, count, read):
        seen.append(read(range(count)).shape)
        return encode(self, view, count, read)

    monkeypatch.setattr(type(model), "_encode", watched)
    model.encode_text(["rain"])
    model.encode_text(["rain", "rain " * 40])
    assert seen == [(1, 32), (2, 40)]


def test_the_longest_text_comes_from_sentence_transformers_or_from_the_encoder(copied):
    folder = copied("roberta")
    assert settings(folder).data.text_length == 40
    edit(folder, "tokenizer_config.json", model_max_length=30)
    assert settings(folder).data.text_length == 30
    edit(folder, "tokenizer_config.json", model_max_length=10**30)
    assert settings(folder).data.text_length == 40  # the positions of the encoder
    edit(folder, "sentence_bert_config.json", max_seq_length=12)
    found = import_weights(folder)
    assert found.tokenizer.length == 12
    assert found.settings.model.text.length == 40
    edit(folder, "sentence_bert_config.json", max_seq_length=41)
    with pytest.raises(WeightsError, match="max_seq_length = 41, but the encoder has 40 positions"):
        settings(folder)


def test_a_plain_folder_is_pooled_by_the_mean(copied):
    folder = copied("roberta")
    assert settings(folder).model.text.pooling == "cls"
    (folder / "modules.json").unlink()
    assert settings(folder).model.text.pooling == "mean"


@pytest.mark.parametrize(
    "changes, pooling",
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": None, "pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
    ],
)
def test_poolings_in_every_spelling(copied, changes, pooling):
    folder = copied("roberta")
    edit(folder, "1_Pooling/config.json", **changes)
    assert settings(folder).model.text.pooling == pooling


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "pooling by mean_sqrt_len_tokens"),
        ({"pooling_mode": ["mean", "cls"]}, "pooling by mean and cls"),
        ({"pooling_mode": None}, "pooling by nothing"),
        ({"include_prompt": False}, "include_prompt = false is not known"),
        ({"embedding_dimension": 9}, "9, but rows of 8 enter the module"),
    ],
)
def test_poolings_that_are_not_known(copied, changes, words):
    folder = copied("roberta")
    edit(folder, "1_Pooling/config.json", **changes)
    with pytest.raises(WeightsError, match=words):
        settings(folder)


@pytest.mark.parametrize(
    "changes, query, passage",
    [
        ({}, "", ""),
        ({"prompts": {"query": "q: ", "document": "d: "}}, "q: ", "d: "),
        ({"prompts": {"query": "q: ", "corpus": "c: ", "passage": "p: "}}, "q: ", "p: "),
        ({"prompts": {"x": "x: ", "query": "q: "}, "default_prompt_name": "x"}, "q: ", "x: "),
        ({"prompts": {"x": "x: "}, "default_prompt_name": None}, "", ""),
        ({"prompts": {"query": "", "document": ""}}, "", ""),
    ],
)
def test_prompts_are_the_prefixes(copied, changes, query, passage):
    folder = copied("bert")
    edit(folder, "config_sentence_transformers.json", **changes)
    data = settings(folder).data
    assert (data.query_prefix, data.passage_prefix) == (query, passage)


def test_prompts_come_and_go_with_the_weights(copied, tmp_path):
    folder = copied("bert")
    plain = contrastive.load(folder)
    prompts = {"query": "query: ", "document": "a passage: "}
    edit(folder, "config_sentence_transformers.json", prompts=prompts)
    native, out = tmp_path / "native", tmp_path / "out"
    assert main(["import", str(folder), f"--output={native}"]) == 0
    assert main(["export", str(native), "--format=huggingface", f"--output={out}"]) == 0
    for model in map(contrastive.load, (folder, native, out)):
        for role, name in (("query", "query"), ("passage", "document")):
            rows = model.encode_text(TEXTS, role=role)
            wanted = plain.encode_text([prompts[name] + text for text in TEXTS])
            np.testing.assert_allclose(rows, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"prompts": {"query": 3}}, "has to be texts by name"),
        ({"prompts": ["q: "]}, "has to be an object"),
        ({"prompts": {"q": "q: "}, "default_prompt_name": "x"}, "'x' is none of the prompts"),
        ({"prompts": {}, "default_prompt_name": ["x"]}, "is none of the prompts"),
    ],
)
def test_prompts_that_are_not_known(copied, changes, words):
    folder = copied("bert")
    edit(folder, "config_sentence_transformers.json", **changes)
    with pytest.raises(WeightsError, match=words):
        settings(folder)


def test_half_a_surrogate_pair_is_said(copied):
    model = contrastive.load(copied("bert"))
    with pytest.raises(UserError, match=r"'a \\ud83d b' is no Unicode: character 2 .* U\+D83D"):
        model.encode_text(["fine", "a \ud83d b"])
    assert model.encode_text("a \U0001f600 b").shape == (1, 6)


def test_modules_after_the_pooling_are_read(copied):
    found = import_weights(copied("bert"))
    after = (DenseConfig(size=6, activation="tanh"), LayerNormConfig(epsilon=1e-5))
    assert found.settings.model.text.after_pooling == after
    assert found.settings.model.embedding_dim == 6


@pytest.mark.parametrize(
    "file, changes, words",
    [
        ("2_Dense/config.json", {"in_features": 9}, "in_features = 9, but rows of 8 enter"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.X"}, "Dense with torch.nn.X"),
        ("2_Dense/config.json", {"use_residual": True}, "and a residual is not known"),
        ("2_Dense/config.json", {"module_output_name": "other"}, "module_output_name = 'other'"),
        ("3_LayerNorm/config.json", {"dimension": 8}, "dimension = 8, but rows of 6 enter"),
        ("config.json", {"is_decoder": True}, "is_decoder = True is not known"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("config.json", {"hidden_act": "silu"}, "hidden_act = 'silu' is not known"),
        ("config.json", {"vocab_size": 50}, "the tokenizer of .* has 60 tokens"),
        ("config.json", {"pad_token_id": 3}, r"pad_token_id = 3, but .* which is token 0"),
        ("tokenizer_config.json", {"do_lower_case": False}, "do_lower_case = False, but"),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side = 'left'"),
        ("tokenizer_config.json", {"truncation_side": "up"}, "truncation_side = 'up'"),
        ("tokenizer_config.json", {"pad_token": "[NONE]"}, "has no padding token"),
    ],
)
def test_contradictions_and_unknown_forms_are_refused(copied, file, changes, words):
    folder = copied("bert")
    edit(folder, file, **changes)
    with pytest.raises(WeightsError, match=words):
        import_weights(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m: [*m[:2], {"type": "x.models.CNN", "path": "2"}], "the module x.models.CNN"),
        (lambda m: [m[1], m[0]], "lists Pooling, Transformer; a Transformer, a Pooling"),
        (lambda m: [m[0], m[1], m[4], m[2]], "lists Transformer, Pooling, Normalize, Dense"),
        (lambda m: [*m[:2], {**m[2], "path": "../other"}], "outside of its own"),
        (lambda m: [{**m[0], "path": "0_Transformer"}, *m[1:]], "its encoder in 0_Transformer"),
        (lambda m: ["Transformer"], "entry 0 is not a module"),
    ],
)
def test_lists_of_modules_that_are_not_known(copied, change, words):
    folder = copied("bert")
    file = folder / "modules.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(WeightsError, match=words):
        import_weights(folder)


def test_tensors_of_all_modules_are_counted(copied):
    folder = copied("bert")
    edit_tensors(
        folder / "2_Dense/model.safetensors", lambda t: {"linear.weight": t["linear.bias"]}
    )
    with pytest.raises(WeightsError, match=r"1 missing: 2_Dense/linear.bias. 1 of a wrong shape"):
        import_weights(folder)
    (folder / "2_Dense/model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"there is no file .*2_Dense"):
        import_weights(folder)


@pytest.mark.parametrize("name, prefix", [("bert", "bert"), ("modernbert", "model")])
def test_checkpoints_with_a_head_of_another_task(copied, name, prefix):
    """Prefixes are taken off, other tasks' heads passed over and listed; old names are known."""
    folder = copied(name)
    before = parameters(import_weights(folder).towers)

    def dressed(tensors):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        named = {}
        for key, array in tensors.items():
            for new, former in old.items():
                key = key.replace(new, former) if name == "bert" else key
            named[f"{prefix}.{key}"] = array
        return named | {"cls.predictions.bias": np.zeros(60, np.float32)}

    edit_tensors(folder / "model.safetensors", dressed)
    found = import_weights(folder)
    assert "cls.predictions.bias" in found.ignored
    after = parameters(found.towers)
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array)


def test_modernbert_in_the_older_and_the_newer_form(copied):
    folder = copied("modernbert")
    text = settings(folder).model.text
    assert (text.window, text.global_every) == (3, 2)
    assert (text.rotary_base, text.local_rotary_base) == (160_000.0, 10_000.0)
    old = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 2}
    edit(folder, "config.json", **old, global_rope_theta=500.0, local_rope_theta=70.0)
    text = settings(folder).model.text
    assert (text.global_every, text.rotary_base, text.local_rotary_base) == (2, 500.0, 70.0)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"attention_bias": True}, "attention_bias = true is not known"),
        ({"layer_types": [FULL, SLIDING, SLIDING, FULL, FULL]}, "layer_types has to be 4 blocks"),
        ({"layer_types": [SLIDING, FULL, SLIDING, FULL]}, "layer_types has to be 4 blocks"),
        ({"rope_scaling": {"type": "linear"}}, "rotary positions are scaled"),
    ],
)
def test_modernberts_that_are_not_known(copied, changes, words):
    folder = copied("modernbert")
    edit(folder, "config.json", **changes)
    with pytest.raises(WeightsError, match=words):
        settings(folder)


def test_modernbert_without_windows(copied):
    folder = copied("modernbert")
    edit(folder, "config.json", layer_types=[FULL] * 4)
    assert settings(folder).model.text.window == 0


# --- Tokenizers


def test_markers_are_those_that_the_tokenizer_puts(copied):
    """ModernBERT's vocabulary has an <|endoftext|>, too, which ends no text."""
    found = import_weights(copied("modernbert"))
    backend = found.settings.vocabulary
    assert backend.token_to_id("<|endoftext|>") is not None
    row = found.tokenizer.encode(["rain"])[0]
    ends = [backend.token_to_id(name) for name in ("[CLS]", "[SEP]", "[PAD]")]
    assert [row[0], row[found.tokenizer.lengths(row[None])[0] - 1], row[-1]] == ends


def test_a_tokenizer_that_adds_more_is_refused(copied):
    folder = copied("bert")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(WeightsError, match="puts 3 tokens around a text"):
        import_weights(folder)


def test_cased_vocabularies_in_a_text_file(copied):
    folder = copied("bert")
    (folder / "tokenizer.json").unlink()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "rain", "Rain"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    for lower, ids in ((True, [5, 5]), (False, [5, 6])):
        edit(folder, "tokenizer_config.json", do_lower_case=lower)
        row = import_weights(folder).tokenizer.encode(["rain Rain"])[0]
        assert row[:4].tolist() == [2, *ids, 3]
    (folder / "vocab.txt").write_text("[PAD]\nrain\n")
    with pytest.raises(WeightsError, match=r"vocab.txt is not a vocabulary of BERT: it lacks"):
        import_weights(folder)


def test_a_folder_without_a_tokenizer_takes_ids(copied):
    folder = copied("bert")
    wanted = np.load(folder / "expected.npz")
    (folder / "tokenizer.json").unlink()
    model = contrastive.load(folder, batch_size=2)
    rows = model.encode_text(wanted["ids"])
    np.testing.assert_allclose(rows, wanted["rows"], atol=1e-5)
    with pytest.raises(UserError, match="came without a tokenizer"):
        model.encode_text("rain")


def test_lower_case_of_the_wrapper(copied):
    """sentence-transformers' do_lower_case lowers before the tokenizer."""
    folder = copied("roberta")
    plain = import_weights(folder).tokenizer
    assert (plain.encode(["RAIN"]) != plain.encode(["rain"])).any()
    edit(folder, "sentence_bert_config.json", do_lower_case=True)
    lower = import_weights(folder).tokenizer
    np.testing.assert_array_equal(lower.encode(["RAIN"]), plain.encode(["rain"]))


@pytest.mark.parametrize("where", ["tokenizer_config.json", "tokenizer.json"])
def test_texts_cut_on_the_left_stay_so(copied, where, tmp_path):
    """In the imported folder, and in the folder that is exported from it."""
    folder = copied("roberta")
    edit(folder, "sentence_bert_config.json", max_seq_length=6)
    if where == "tokenizer.json":
        cut = {"direction": "Left", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
        edit(folder, where, truncation=cut)
    else:
        edit(folder, where, truncation_side="left")
    text = "The ferry leaves at noon"
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    wanted = [0, *backend.encode(text, add_special_tokens=False).ids[-4:], 2]
    found = import_weights(folder)
    assert found.tokenizer.encode([text])[0].tolist() == wanted
    assert main(["import", str(folder), f"--output={tmp_path / 'run'}"]) == 0
    assert contrastive.load(tmp_path / "run").tokenizer.encode([text])[0].tolist() == wanted
    out = tmp_path / "out"
    export_weights(found.settings, found.towers, found.tokenizer, "huggingface", out)
    assert import_weights(out).tokenizer.encode([text])[0].tolist() == wanted
    edit(folder, "tokenizer_config.json", truncation_side="right")
    if where == "tokenizer.json":
        with pytest.raises(WeightsError, match="truncation_side = 'right', but tokenizer"):
            import_weights(folder)


# --- As the start of a run


@pytest.fixture
def locked(tiny, copied, tmp_path):
    """The tiny recipe with the text tower and the tokenizer of an imported folder."""
    folder = tmp_path / "imported"
    assert main(["import", str(copied("modernbert")), f"--output={folder}"]) == 0
    text = {"kind": "encoder", "width": 8, "depth": 4, "heads": 2, "mlp_ratio": 1.5}
    text |= {"norm": "pre", "positions": "rotary", "gated": True, "bias": False, "window": 3}
    text |= {"global_every": 2, "token_types": 0, "length": 40, "epsilon": 1e-5}
    text |= {"pooling": "weighted_mean"}
    tiny.model["text"] = text
    tiny.data["tokenizer"] = {"end_token": "[SEP]"}
    tiny.optimizer["multipliers"] = (("text/(?!projection/).*", None),)
    tiny.init_from = str(folder)
    tiny.total_steps = 4
    tiny.average_decay = 0.9
    return tiny


def run(config, workdir):
    recipe = config_lib.resolve(Recipe, config, [])
    return train(recipe, workdir, new=False, devices=jax.devices()[:1])


def test_a_locked_text_tower(locked, tmp_path):
    """LiT: the encoder and its tokenizer come from a folder and stay; the projection learns, with
    another size of rows. So does the recipe's temperature, since sentence encoders have none."""
    locked.loss = {"scale_init": 20.0}
    locked.optimizer["multipliers"] += (("log_scale", None),)
    assert run(locked, tmp_path / "run") == 0
    source, model = contrastive.load(tmp_path / "imported"), contrastive.load(tmp_path / "run")
    theirs, ours = (m.tokenizer.encode(["a red circle", "a bar"]) for m in (source, model))
    np.testing.assert_array_equal(ours[:, :7], theirs[:, :7])
    before, after = (nnx.to_pure_dict(m._parameters)["text"] for m in (source, model))
    assert after.pop("projection")["kernel"].shape == (8, 16)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))
    assert model.scale == pytest.approx(20.0)


def test_a_start_with_other_markers_is_refused(locked, tmp_path):
    """The vocabulary has an <|endoftext|>, which would be taken for the end of a text."""
    locked.data["tokenizer"] = {}
    with pytest.raises(ConfigError, match=r"config.data.tokenizer.end_token = '\[SEP\]'"):
        run(locked, tmp_path / "run")


def test_a_start_with_another_pooling_is_refused(locked, tmp_path):
    """But of a plain folder, which does not say how its rows are pooled."""
    locked.model["text"]["pooling"] = "last"
    with pytest.raises(
        ConfigError, match=r"text\.pooling = 'last', but .* trained with 'weighted_mean'"
    ):
        run(locked, tmp_path / "run")
    (tmp_path / "modernbert" / "modules.json").unlink()
    locked.init_from, locked.total_steps = str(tmp_path / "modernbert"), 1
    assert run(locked, tmp_path / "plain") == 0


def test_a_start_with_another_head_of_the_same_size_is_refused():
    def heads(*configs):
        return EncoderConfig(after_pooling=configs)

    old = heads(DenseConfig(size=6), LayerNormConfig())
    _check_heads(old, heads(DenseConfig(size=6), LayerNormConfig(), DenseConfig(size=9)))
    _check_heads(old, heads(DenseConfig(size=7, activation="gelu")))  # its parameters are new
    _check_heads(old, None)
    with pytest.raises(ConfigError, match=r"after_pooling\[0\] = .*gelu.* trained with .*tanh"):
        _check_heads(old, heads(DenseConfig(size=6, activation="gelu")))
    with pytest.raises(ConfigError, match=r"after_pooling\[1\]"):
        _check_heads(old, heads(DenseConfig(size=6), LayerNormConfig(epsilon=1e-3)))


def test_import_and_export_on_the_command_line(copied, tmp_path, capsys):
    folder = copied("bert")
    assert main(["import", str(folder), f"--output={tmp_path / 'run'}"]) == 0
    command = ["export", str(tmp_path / "run"), f"--output={tmp_path / 'out'}"]
    assert main([*command, "--format=huggingface"]) == 0
    assert "(bert)" in capsys.readouterr().out
    for name in ("model.safetensors", "2_Dense/model.safetensors", "3_LayerNorm/model.safetensors"):
        before, after = read_tensors(folder / name), read_tensors(tmp_path / "out" / name)
        for key, array in after.items():
            np.testing.assert_array_equal(array, before[key])
    a, b = (contrastive.load(p).encode_text(TEXTS) for p in (folder, tmp_path / "out"))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("override", ["model.text.epsilon=1e-5", "data.text_length=20"])
def test_a_contradiction_on_the_command_line(copied, tmp_path, override):
    with pytest.raises(ConfigError, match="contradicts the weights"):
        import_model(copied("bert"), tmp_path / "out", expected=[f"--config.{override}"])
