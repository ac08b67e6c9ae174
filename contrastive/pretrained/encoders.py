"""Text encoders of the BERT class: folders of the transformers library, plain or as a
sentence-transformers model (:mod:`contrastive.pretrained.sentence`), which a plain one becomes when
it is written.

A model has a text tower only. Its rows are unit rows here, whether or not the folder says
Normalize.
"""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.pretrained import layouts, sentence
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.huggingface import activation, shape, shape_of
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.pretrained.vocabularies import read_preset
from contrastive.towers import EncoderConfig, TwoTowerConfig

_HEADS = r"(pooler|cls|lm_head|classifier|head|decoder|qa_outputs)\..*"  # of other tasks
_BUFFERS = r".*(position_ids|token_type_ids|inv_freq)"


def _encoder(source: Source, config: Settings, offset: int, **more: Any) -> EncoderConfig:
    """What the three forms share; ``offset``: rows of the position table before the first."""
    rows = config.get("max_position_embeddings", 512)
    return EncoderConfig(
        **shape(config, width=768, hidden=3072, depth=12, heads=12),
        vocabulary_size=config.get("vocab_size", 30522),
        length=rows - offset,
        position_offset=offset,
        projection="none",
        pooling=sentence.pooling(source),
        after_pooling=sentence.after_pooling(source, config.get("hidden_size", 768)),
        **more,
    )


def _describe(source: Source, config: Settings, text: EncoderConfig) -> Description:
    preset = read_preset(source, config, text)
    after = text.after_pooling
    sizes = [step.size for step in after if step.kind == "dense"]
    prompts = sentence.prompts(source)
    return Description(
        data=DataConfig(text_length=preset.length, tokenizer=preset.config, **prompts),
        model=TwoTowerConfig(
            image=None, text=text, embedding_dim=sizes[-1] if sizes else text.width
        ),
        vocabulary=preset.vocabulary,
        pad_id=preset.pad_id,
        open=() if sentence.modules(source) else ("pooling",),
    )


def _settings(source: Source) -> Settings:
    config = Settings(source.config, str(source.folder / "config.json"))
    for name, wanted in (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    ):
        given = config.values.get(name, wanted)
        if given not in (wanted, None):
            raise WeightsError(f"{config.where}: {name} = {given!r} is not known here.")
    return config


# --- BERT and RoBERTa -------------------------------------------------------------------------

_BERT_BLOCK = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def _describe_bert(source: Source) -> Description:
    return _describe_post_norm(source, offset=0, types=2, epsilon=1e-12, vocabulary=30522)


def _describe_roberta(source: Source) -> Description:
    pad = _settings(source).get("pad_token_id", 1)
    return _describe_post_norm(source, offset=pad + 1, types=1, epsilon=1e-5, vocabulary=50265)


def _describe_post_norm(
    source: Source, *, offset: int, types: int, epsilon: float, vocabulary: int
) -> Description:
    config = _settings(source)
    config.values.setdefault("vocab_size", vocabulary)
    text = _encoder(
        source,
        config,
        offset,
        activation=activation(config, "gelu"),
        epsilon=config.get("layer_norm_eps", epsilon),
        token_types=config.get("type_vocab_size", types),
        dropout=0.0,
    )
    return _describe(source, config, text)


def _bert_rules(settings: Description) -> list[Rule]:
    return [
        Rule("text/tokens", "embeddings.word_embeddings.weight"),
        Rule("text/positions", "embeddings.position_embeddings.weight"),
        Rule("text/token_types", "embeddings.token_type_embeddings.weight"),
        *layouts.norm("text/norm_before", "embeddings.LayerNorm"),
        *layouts.blocks("text/blocks", "encoder.layer.{}.", _BERT_BLOCK),
        *sentence.rules(_text(settings)),
    ]


def _text(settings: Description) -> EncoderConfig:
    text = settings.model.text
    if settings.model.image is not None or not isinstance(text, EncoderConfig):
        raise WeightsError("a folder of sentence-transformers holds one encoder of texts.")
    return text


def _bert_files(settings: Description) -> dict[str, Any]:
    return _post_norm_files(settings, "bert", "BertModel")


def _roberta_files(settings: Description) -> dict[str, Any]:
    return _post_norm_files(settings, "roberta", "RobertaModel")


def _post_norm_files(settings: Description, kind: str, architecture: str) -> dict[str, Any]:
    text = _text(settings)
    config = _common_files(settings, kind, architecture) | {
        "max_position_embeddings": text.length + text.position_offset,
        "position_embedding_type": "absolute",
        "type_vocab_size": text.token_types,
    }
    return {"config.json": config, **sentence.files(settings)}


def _common_files(settings: Description, kind: str, architecture: str) -> dict[str, Any]:
    text = _text(settings)
    return shape_of(text) | {
        "architectures": [architecture],
        "model_type": kind,
        "pad_token_id": settings.pad_id,
        "vocab_size": text.vocabulary_size,
        "torch_dtype": "float32",
    }


# --- ModernBERT -------------------------------------------------------------------------------


def _describe_modernbert(source: Source) -> Description:
    config = _settings(source)
    biases = [n for n in ("norm_bias", "attention_bias", "mlp_bias") if config.get(n, False)]
    if biases:
        raise WeightsError(f"{config.where}: {biases[0]} = true is not known here.")
    defaults = {"vocab_size": 50368, "intermediate_size": 1152, "num_hidden_layers": 22}
    config.values.update({n: v for n, v in defaults.items() if n not in config.values})
    config.values.setdefault("max_position_embeddings", 8192)
    bases = {
        kind: _rotary_base(config, kind, old, base)
        for kind, old, base in (
            ("full_attention", "global_rope_theta", 160_000.0),
            ("sliding_attention", "local_rope_theta", 10_000.0),
        )
    }
    every = _global_every(config)
    text = _encoder(
        source,
        config,
        0,
        norm="pre",
        gated=True,
        bias=False,
        activation=activation(config, "gelu", "hidden_activation"),
        epsilon=config.get("norm_eps", 1e-5),
        init="modernbert",
        token_types=0,
        positions="rotary",
        rotary_base=bases["full_attention"],
        local_rotary_base=bases["sliding_attention"],
        window=config.get("local_attention", 128) // 2 if every > 1 else 0,
        global_every=every,
    )
    return _describe(source, config, text)


def _rotary_base(config: Settings, kind: str, old: str, default: float) -> float:
    """Of the newer form of the configuration, a group for each kind of block, or the older one."""
    group = config.group("rope_parameters").group(kind)
    if group.get("rope_type", "default") != "default" or config.values.get("rope_scaling"):
        raise WeightsError(f"{config.where}: rotary positions are scaled, which is not known here.")
    return group.get("rope_theta", config.get(old, default))


def _global_every(config: Settings) -> int:
    """Blocks 0, n, 2n, … see the whole text; 1: all of them.

    Raises:
      WeightsError: The list of blocks has another order.
    """
    kinds = config.get("layer_types", [])
    if not kinds:
        return config.get("global_attn_every_n_layers", 3)
    whole = [kind == "full_attention" for kind in kinds]
    every = whole.index(True, 1) if True in whole[1:] else max(len(whole), 2)
    if all(whole):
        every = 1
    depth = config.get("num_hidden_layers", 22)
    if len(whole) != depth or whole != [i % every == 0 for i in range(depth)]:
        raise WeightsError(
            f"{config.where}: layer_types has to be {depth} blocks of which the first and every "
            "n-th after it has full_attention, the others sliding_attention."
        )
    return every


def _modernbert_rules(settings: Description) -> list[Rule]:
    ours, theirs = "text/blocks", "layers.{}."
    names = {"qkv": f"{theirs}attn.Wqkv", "out": f"{theirs}attn.Wo"}
    hidden = (f"{ours}/mlp/up/kernel", f"{ours}/mlp/gate/kernel")
    return [
        Rule("text/tokens", "embeddings.tok_embeddings.weight"),
        *layouts.norm("text/norm_before", "embeddings.norm", bias=False),
        *layouts.norm(f"{ours}/norm1", f"{theirs}attn_norm", bias=False, first_block=1),
        *layouts.attention(f"{ours}/attention", names, bias=False),
        *layouts.norm(f"{ours}/norm2", f"{theirs}mlp_norm", bias=False),
        Rule(hidden, f"{theirs}mlp.Wi.weight", "n i o -> (n o) i"),
        *layouts.linear(f"{ours}/mlp/down", f"{theirs}mlp.Wo", bias=False),
        *layouts.norm("text/norm", "final_norm", bias=False),
        *sentence.rules(_text(settings)),
    ]


def _modernbert_files(settings: Description) -> dict[str, Any]:
    text = _text(settings)
    common = _common_files(settings, "modernbert", "ModernBertModel")
    config = common | {
        "hidden_activation": common.pop("hidden_act"),
        "norm_eps": common.pop("layer_norm_eps"),
        "max_position_embeddings": text.length,
        "local_attention": 2 * text.window,
        "global_attn_every_n_layers": text.global_every if text.window else 1,
        "global_rope_theta": text.rotary_base,
        "local_rope_theta": text.local_rotary_base,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    return {"config.json": config, **sentence.files(settings)}


def _kinds(*names: str) -> Any:
    return lambda source: source.config.get("model_type") in names


BERT = Family(
    name="bert",
    recognises=_kinds("bert"),
    describe=_describe_bert,
    rules=_bert_rules,
    tensors=sentence.tensors,
    ignored=(_HEADS, _BUFFERS),
    renamed=(
        (r"^bert\.", ""),
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # as the first releases spelt them
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
    ),
    fresh=("log_scale",),
    files=_bert_files,
    tokenizer_class="PreTrainedTokenizerFast",
)
ROBERTA = Family(
    name="roberta",
    recognises=_kinds("roberta", "xlm-roberta", "camembert"),
    describe=_describe_roberta,
    rules=_bert_rules,
    tensors=sentence.tensors,
    ignored=(_HEADS, _BUFFERS),
    renamed=((r"^roberta\.", ""),),
    fresh=("log_scale",),
    files=_roberta_files,
    tokenizer_class="PreTrainedTokenizerFast",
)
MODERNBERT = Family(
    name="modernbert",
    recognises=_kinds("modernbert"),
    describe=_describe_modernbert,
    rules=_modernbert_rules,
    tensors=sentence.tensors,
    ignored=(_HEADS, _BUFFERS),
    renamed=((r"^model\.", ""),),
    fresh=("log_scale",),
    files=_modernbert_files,
    tokenizer_class="PreTrainedTokenizerFast",
)
