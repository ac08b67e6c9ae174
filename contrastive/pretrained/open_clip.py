"""CLIP as open_clip names it (OpenAI's own names), with its JSON configurations.

The layer norms of the towers, ``ln_pre`` to ``ln_final``, and projections that are matrices
``[width, dim]``, not Linears: they lie as ours do.
"""

import dataclasses
import math
from typing import Any

from contrastive.data.config import DataConfig
from contrastive.data.picture_config import ResizeConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.transforms import PIXEL_STATISTICS, STRETCHES, TAKES_MIDDLE
from contrastive.data.vocabulary import read_vocabulary
from contrastive.errors import WeightsError
from contrastive.objectives import LossConfig
from contrastive.pretrained import huggingface, layouts
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import (
    ResNetConfig,
    TextTransformerConfig,
    TwoTowerConfig,
    VisionTransformerConfig,
)
from contrastive.towers.layers import Activation

BLOCK = {
    "norm1": "ln_1",
    "norm2": "ln_2",
    "qkv": "attn.in_proj_",
    "out": "attn.out_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_CLIP_PIECES = 49_408
# Options of its towers that this project does not have, and the values that leave them out.
_OFF: dict[str, tuple[Any, ...]] = {
    "attentional_pool": (False,),
    "pos_embed_type": ("learnable",),
    "final_ln_after_pool": (False,),
    "ls_init_value": (),
    "block_type": ("default",),
    "qk_norm": (False,),
    "scaled_cosine_attn": (False,),
    "scale_heads": (False,),
    "scale_attn_inner": (False,),
    "scale_attn": (False,),
    "scale_fc": (False,),
    "embed_cls": (False,),
    "hf_model_name": (),
}


def model_settings(source: Source) -> Settings:
    """The architecture's part of a configuration."""
    config = source.config
    inner = config.get("model_cfg", config)
    return Settings(inner if isinstance(inner, dict) else {}, f"{source.folder}: model_cfg")


def recognises(source: Source) -> bool:
    """Whether a configuration is of this form."""
    values = model_settings(source).values
    return "embed_dim" in values and "vision_cfg" in values


def check_options(settings: Settings) -> None:
    """Raises :class:`WeightsError` where an option is on that this project does not have."""
    for name, off in _OFF.items():
        value = settings.values.get(name)
        if value is not None and value not in off:
            raise WeightsError(f"{settings.where}: {name} = {value!r} is not known here.")


def _activation(settings: Settings, *, quick: bool) -> Activation:
    if quick:
        return "quick_gelu"
    tanh = (settings.values.get("act_kwargs") or {}).get("approximate") == "tanh"
    return "gelu_tanh" if tanh else "gelu"


def _ratio(settings: Settings, width: int) -> float:
    """Hidden units over width; its own code cuts their product down to a whole number."""
    return int(width * settings.get("mlp_ratio", 4.0)) / width


def _ratio_of(tower: TextTransformerConfig | VisionTransformerConfig) -> float:
    ratio = tower.hidden / tower.width
    return ratio if int(tower.width * ratio) == tower.hidden else math.nextafter(ratio, math.inf)


def _epsilon(settings: Settings) -> float:
    return settings.group("norm_kwargs").get("eps", 1e-5)


def text_tower(text: Settings, *, quick: bool) -> TextTransformerConfig:
    """The text tower of a configuration."""
    check_options(text)
    pooling = text.get("pool_type", "argmax")
    if pooling not in ("argmax", "last"):
        raise WeightsError(f"{text.where}: pool_type = {pooling!r} is not known here.")
    bias = text.get("proj_bias", False)
    projection = text.get("proj_type", "linear")
    width = text.count("width", 512)
    return TextTransformerConfig(
        width=width,
        depth=text.count("layers", 12),
        heads=text.count("heads", 8),
        mlp_ratio=_ratio(text, width),
        activation=_activation(text, quick=quick),
        epsilon=_epsilon(text),
        init="clip",
        projection="none" if projection == "none" else "bias" if bias else "linear",
        vocabulary_size=text.get("vocab_size", _CLIP_PIECES),
        length=text.get("context_length", 77),
        causal=not text.get("no_causal_mask", False),
        # argmax: the end token has the largest id; last: the last place, padding or not
        pooling="last",
        padding="masked" if pooling == "argmax" else "read",
    )


def vision_tower(vision: Settings, *, quick: bool) -> VisionTransformerConfig:
    check_options(vision)
    if vision.get("pool_type", "tok") != "tok":
        raise WeightsError(f"{vision.where}: pool_type = {vision.get('pool_type')!r} is not known.")
    width = vision.count("width", 768)
    return VisionTransformerConfig(
        width=width,
        depth=vision.count("layers", 12),
        heads=width // vision.count("head_width", 64),
        mlp_ratio=_ratio(vision, width),
        activation=_activation(vision, quick=quick),
        epsilon=_epsilon(vision),
        init="clip",
        patch_size=huggingface.square(vision, "patch_size", 16),
        pooling="cls",
        pre_norm=not vision.get("no_ln_pre", False),
        patch_bias=False,
    )


def pictures(source: Source) -> huggingface.Pictures:
    """What ``preprocess_cfg`` says."""
    known = Settings(source.config, str(source.folder)).group("preprocess_cfg")
    mode, method = known.get("resize_mode", "shortest"), known.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or method not in ("bicubic", "bilinear"):
        raise WeightsError(
            f"{known.where}: resize_mode = {mode!r}, interpolation = {method!r}; known here are "
            "shortest and squash, bicubic and bilinear."
        )
    defaults = PIXEL_STATISTICS["clip"]
    mean, std = known.three("mean", defaults[0]), known.three("std", defaults[1])
    return huggingface.Pictures(
        {
            "preprocessing": huggingface.rule(stretched=mode == "squash", mean=mean, std=std),
            "resize": ResizeConfig(interpolation=method),
        },
        mean,
        std,
    )


def texts(source: Source, text: Settings) -> huggingface.Texts:
    """The tokenizer: CLIP's own, unless the configuration names another, which lies beside it."""
    if text.values.get("hf_tokenizer_name") is None:
        if text.get("vocab_size", _CLIP_PIECES) == _CLIP_PIECES:
            config = TokenizerConfig(preset="clip", path="tokenizer.json")
            return huggingface.Texts(read_vocabulary(None, "clip"), config)
        return huggingface.texts(source)
    found = huggingface.texts(source)
    clean = text.group("tokenizer_kwargs").get("clean", "whitespace")
    if clean == "canonicalize" and found.vocabulary is not None:
        gemma = found.vocabulary.token_to_id("<eos>") is not None  # SigLIP 2's; SigLIP's is T5's
        preset = "siglip2_open_clip" if gemma else "siglip_open_clip"
        config = TokenizerConfig(preset=preset, path="tokenizer.json")
        return huggingface.Texts(found.vocabulary, config)
    return found


def _describe(source: Source) -> Description:
    config = model_settings(source)
    vision = config.group("vision_cfg")
    return describe(source, vision_tower(vision, quick=config.get("quick_gelu", False)))


def describe(source: Source, image: VisionTransformerConfig | ResNetConfig) -> Description:
    """What a configuration says, apart from the image tower."""
    config = model_settings(source)
    vision, text = config.group("vision_cfg"), config.group("text_cfg")
    quick = config.get("quick_gelu", False)
    tower, read = text_tower(text, quick=quick), texts(source, text)
    shown = pictures(source)
    bias = config.values.get("init_logit_bias") is not None
    return Description(
        data=DataConfig(
            image_size=huggingface.square(vision, "image_size", 224),
            text_length=tower.length,
            tokenizer=read.config,
            **shown.data,
        ),
        model=TwoTowerConfig(
            image=image,
            text=tower,
            embedding_dim=config.count("embed_dim"),
            pixel_mean=shown.mean,
            pixel_std=shown.std,
        ),
        loss=LossConfig(name="siglip" if bias else "clip"),
        vocabulary=read.vocabulary,
        end_id=None if tower.padding == "read" else tower.vocabulary_size - 1,
    )


def text_rules(settings: Description) -> list[Rule]:
    """Names of the text tower."""
    assert isinstance(settings.model.text, TextTransformerConfig)
    projection = {
        "linear": [Rule("text/projection/kernel", "text_projection")],
        "bias": layouts.linear("text/projection", "text_projection"),
        "none": [],
    }
    return [
        Rule("text/tokens", "token_embedding.weight"),
        Rule("text/positions", "positional_embedding"),
        *layouts.blocks("text/transformer/blocks", "transformer.resblocks.{}.", BLOCK),
        *layouts.norm("text/norm", "ln_final"),
        *projection[settings.model.text.projection],
    ]


def scalar_rules(settings: Description) -> list[Rule]:
    """Scale and bias of the logits."""
    rules = [Rule("log_scale", "logit_scale")]
    return [*rules, Rule("bias", "logit_bias")] if settings.loss.name == "siglip" else rules


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    before = layouts.norm("image/norm_before", "visual.ln_pre") if image.pre_norm else []
    return [
        Rule("image/class_token", "visual.class_embedding", layouts.ROW),
        *layouts.patches("image/patches", "visual.conv1", image.patch_size, bias=False),
        Rule("image/positions", "visual.positional_embedding"),
        *before,
        *layouts.blocks("image/transformer/blocks", "visual.transformer.resblocks.{}.", BLOCK),
        *layouts.norm("image/norm", "visual.ln_post"),
        Rule("image/projection/kernel", "visual.proj"),
        *text_rules(settings),
        *scalar_rules(settings),
    ]


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image = settings.model.image
    if not isinstance(image, VisionTransformerConfig):
        raise WeightsError("its image tower is no vision transformer")
    vision = {
        "image_size": settings.data.image_size,
        "layers": image.depth,
        "width": image.width,
        "head_width": image.width // image.heads,
        "mlp_ratio": _ratio_of(image),
        "patch_size": image.patch_size,
        "no_ln_pre": not image.pre_norm,
        **_details(image.activation, image.epsilon),
    }
    return files(settings, vision)


def files(settings: Description, vision: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The configuration of a model with this image tower."""
    text = settings.model.text
    if not isinstance(text, TextTransformerConfig):
        raise WeightsError("its text tower is none of open_clip's")
    model: dict[str, Any] = {
        "embed_dim": settings.model.embedding_dim,
        "vision_cfg": vision,
        "text_cfg": {
            "context_length": text.length,
            "vocab_size": settings.vocabulary_size,
            "width": text.width,
            "heads": text.heads,
            "layers": text.depth,
            "mlp_ratio": _ratio_of(text),
            **_details(text.activation, text.epsilon),
        },
    }
    if text.activation == "quick_gelu":
        model["quick_gelu"] = True
    if settings.loss.name == "siglip":
        model["init_logit_bias"] = -10.0
    if _is_custom(settings):
        model["custom_text"] = True
    own = settings.data.tokenizer.preset == "clip"
    if not own:
        model["text_cfg"]["hf_tokenizer_name"] = "tokenizer"
    if text.padding == "read":
        model["text_cfg"] |= {"pool_type": "last"}
    if not text.causal:
        model["text_cfg"] |= {"no_causal_mask": True}
    if text.projection != "linear":
        model["text_cfg"] |= (
            {"proj_bias": True} if text.projection == "bias" else {"proj_type": "none"}
        )
    return {"open_clip_config.json": {"model_cfg": model, "preprocess_cfg": _pictures_of(settings)}}


def _details(activation: str, epsilon: float) -> dict[str, Any]:
    out: dict[str, Any] = {} if epsilon == 1e-5 else {"norm_kwargs": {"eps": epsilon}}
    return out | ({"act_kwargs": {"approximate": "tanh"}} if activation == "gelu_tanh" else {})


def _pictures_of(settings: Description) -> dict[str, Any]:
    data, how = settings.data, settings.data.resize
    if data.preprocessing not in (*TAKES_MIDDLE, *STRETCHES) or how.share != 1.0:
        raise WeightsError(
            f"config.data.preprocessing = {data.preprocessing!r} (share {how.share}) is no rule of "
            "open_clip."
        )
    return {
        "size": [data.image_size, data.image_size],
        "mode": "RGB",
        "mean": list(settings.model.pixel_mean),
        "std": list(settings.model.pixel_std),
        "interpolation": how.interpolation,
        "resize_mode": "squash" if data.preprocessing in STRETCHES else "shortest",
        "fill_color": 0,
    }


def _is_custom(settings: Description) -> bool:
    """Whether the text tower stands apart, since it is not that of CLIP."""
    text = settings.model.text
    assert isinstance(text, TextTransformerConfig)
    return not text.causal or text.projection != "linear" or text.padding == "read"


def _plain_files(settings: Description) -> dict[str, dict[str, Any]]:
    if isinstance(settings.model.text, TextTransformerConfig) and _is_custom(settings):
        raise WeightsError("its text tower is not CLIP's")
    return _files(settings)


def _custom_rules(settings: Description) -> list[Rule]:
    plain = text_rules(settings)
    kept = [rule for rule in _rules(settings) if rule not in plain]
    return [*kept, *in_text(plain)]


def in_text(rules: list[Rule]) -> list[Rule]:
    """The same names under ``text.``, where the text tower stands apart."""
    return [
        dataclasses.replace(rule, theirs=tuple(f"text.{name}" for name in rule.names))
        for rule in rules
    ]


def _is_vit(source: Source) -> bool:
    vision = model_settings(source).group("vision_cfg").values
    return (
        recognises(source)
        and "timm_model_name" not in vision
        and not isinstance(vision.get("layers"), list)
    )


def _is_vit_custom(source: Source) -> bool:
    return _is_vit(source) and model_settings(source).values.get("custom_text") is True


FAMILY = Family(
    name="open_clip",
    recognises=lambda source: _is_vit(source) and not _is_vit_custom(source),
    describe=_describe,
    rules=_rules,
    ignored=(r"(.*\.)?attn_mask", "input_resolution", "context_length", "vocab_size"),
    renamed=((r"^text\.", ""),),
    files=_plain_files,
    tokenizer_class="PreTrainedTokenizerFast",
    weights_name="open_clip_model.safetensors",
    resampling="bicubic_antialias",
)

CUSTOM = dataclasses.replace(
    FAMILY,
    name="open_clip_text",
    recognises=_is_vit_custom,
    rules=_custom_rules,
    renamed=(
        (r"^(?=transformer\.|token_embedding\.|positional_embedding$|ln_final\.)", "text."),
        (r"^(?=text_projection)", "text."),
    ),
    files=_files,
)
