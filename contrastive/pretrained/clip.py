"""CLIP (Radford et al. 2021) as transformers names and configures it."""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.data.transforms import PIXEL_STATISTICS
from contrastive.errors import WeightsError
from contrastive.pretrained import huggingface, layouts
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TextTransformerConfig, TwoTowerConfig, VisionTransformerConfig

_LEGACY_END = 2  # configurations written before 2023 say so, and mean the largest id
_PICTURES = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": PIXEL_STATISTICS["clip"][0],
    "image_std": PIXEL_STATISTICS["clip"][1],
}


def vision_tower(vision: Settings) -> VisionTransformerConfig:
    """The image tower of a configuration."""
    return VisionTransformerConfig(
        **huggingface.shape(vision, width=768, hidden=3072, depth=12, heads=12),
        activation=huggingface.activation(vision, "quick_gelu"),
        epsilon=vision.get("layer_norm_eps", 1e-5),
        init="clip",
        patch_size=huggingface.square(vision, "patch_size", 32),
        pooling="cls",
        pre_norm=True,
        patch_bias=False,
    )


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    text, vision = config.group("text_config"), config.group("vision_config")
    size = huggingface.square(vision, "image_size", 224)
    length, vocabulary = text.get("max_position_embeddings", 77), text.get("vocab_size", 49408)
    end = text.get("eos_token_id", 49407)
    end = vocabulary - 1 if end == _LEGACY_END else end
    pictures = huggingface.pictures(
        source,
        size,
        _PICTURES | {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}},
    )
    texts = huggingface.texts(source)
    text_tower = TextTransformerConfig(
        **huggingface.shape(text, width=512, hidden=2048, depth=12, heads=8),
        activation=huggingface.activation(text, "quick_gelu"),
        epsilon=text.get("layer_norm_eps", 1e-5),
        init="clip",
        vocabulary_size=vocabulary,
        length=length,
        causal=True,
        pooling="last",
    )
    return Description(
        data=DataConfig(
            image_size=size, text_length=length, tokenizer=texts.config, **pictures.data
        ),
        model=TwoTowerConfig(
            image=vision_tower(vision),
            text=text_tower,
            embedding_dim=config.get("projection_dim", 512),
            pixel_mean=pictures.mean,
            pixel_std=pictures.std,
        ),
        vocabulary=texts.vocabulary,
        pad_id=0 if end else 1,
        end_id=end,
    )


def vision_rules(image: VisionTransformerConfig, prefix: str = "vision_model.") -> list[Rule]:
    """Names of the image tower."""
    patch = f"{prefix}embeddings.patch_embedding"
    return [
        Rule("image/class_token", f"{prefix}embeddings.class_embedding", layouts.ROW),
        *layouts.patches("image/patches", patch, image.patch_size, bias=False),
        Rule("image/positions", f"{prefix}embeddings.position_embedding.weight"),
        *layouts.norm("image/norm_before", f"{prefix}pre_layrnorm"),
        *layouts.blocks(
            "image/transformer/blocks", f"{prefix}encoder.layers.{{}}.", huggingface.BLOCK
        ),
        *layouts.norm("image/norm", f"{prefix}post_layernorm"),
    ]


def text_rules(prefix: str = "text_model.") -> list[Rule]:
    """Names of the text tower, without its projection; SigLIP's are the same."""
    return [
        Rule("text/tokens", f"{prefix}embeddings.token_embedding.weight"),
        Rule("text/positions", f"{prefix}embeddings.position_embedding.weight"),
        *layouts.blocks(
            "text/transformer/blocks", f"{prefix}encoder.layers.{{}}.", huggingface.BLOCK
        ),
        *layouts.norm("text/norm", f"{prefix}final_layer_norm"),
    ]


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    return [
        *vision_rules(image),
        *layouts.linear("image/projection", "visual_projection", bias=False),
        *text_rules(),
        *layouts.linear("text/projection", "text_projection", bias=False),
        Rule("log_scale", "logit_scale"),
    ]


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image, text = settings.model.image, settings.model.text
    if not isinstance(image, VisionTransformerConfig) or not isinstance(
        text, TextTransformerConfig
    ):
        raise WeightsError("a CLIP folder holds a vision transformer and a text transformer.")
    dim = settings.model.embedding_dim
    return {
        "config.json": {
            "architectures": ["CLIPModel"],
            "model_type": "clip",
            "projection_dim": dim,
            "logit_scale_init_value": 2.6592,
            "torch_dtype": "float32",
            "text_config": huggingface.shape_of(text)
            | {
                "model_type": "clip_text_model",
                "vocab_size": settings.vocabulary_size,
                "max_position_embeddings": text.length or settings.data.text_length,
                "projection_dim": dim,
                "eos_token_id": settings.end_id,
                "pad_token_id": settings.pad_id,
                "bos_token_id": settings.begin_id,
            },
            "vision_config": huggingface.shape_of(image)
            | {
                "model_type": "clip_vision_model",
                "image_size": settings.data.image_size,
                "patch_size": image.patch_size,
                "num_channels": 3,
                "projection_dim": dim,
            },
        },
        "preprocessor_config.json": huggingface.pictures_of(
            settings.data, settings.model, "CLIPImageProcessor"
        ),
    }


FAMILY = Family(
    name="clip",
    recognises=lambda source: source.config.get("model_type") == "clip",
    describe=_describe,
    rules=_rules,
    ignored=(r".*\.position_ids",),
    renamed=((r"\.pre_layernorm\.", ".pre_layrnorm."),),
    files=_files,
    tokenizer_class="CLIPTokenizer",
)
