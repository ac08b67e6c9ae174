"""Vision transformers (Dosovitskiy et al. 2021) as transformers names them: an image tower without
a text tower, whose rows are those of the class token after the last norm. The heads of other tasks
are not read."""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.pretrained import huggingface, layouts
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TwoTowerConfig, VisionTransformerConfig

_BLOCK = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "q": "attention.attention.query",
    "k": "attention.attention.key",
    "v": "attention.attention.value",
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    if not config.get("qkv_bias", True):
        raise WeightsError(f"{config.where}: qkv_bias is false; biases are expected.")
    size = huggingface.square(config, "image_size", 224)
    square = {"height": size, "width": size}
    pictures = huggingface.pictures(
        source,
        size,
        {
            "size": square,
            "resample": 2,
            "image_mean": huggingface.HALF,
            "image_std": huggingface.HALF,
        },
    )
    image = VisionTransformerConfig(
        **huggingface.shape(config, width=768, hidden=3072, depth=12, heads=12),
        activation=huggingface.activation(config, "gelu"),
        epsilon=config.get("layer_norm_eps", 1e-12),
        patch_size=huggingface.square(config, "patch_size", 16),
        pooling="cls",
        projection="none",
    )
    return Description(
        data=DataConfig(image_size=size, **pictures.data),
        model=TwoTowerConfig(
            image=image,
            text=None,
            embedding_dim=image.width,
            pixel_mean=pictures.mean,
            pixel_std=pictures.std,
        ),
    )


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    return [
        Rule("image/class_token", "embeddings.cls_token", layouts.ROW_3D),
        *layouts.patches(
            "image/patches", "embeddings.patch_embeddings.projection", image.patch_size, bias=True
        ),
        Rule("image/positions", "embeddings.position_embeddings", "n w -> 1 n w"),
        *layouts.blocks("image/transformer/blocks", "encoder.layer.{}.", _BLOCK),
        *layouts.norm("image/norm", "layernorm"),
    ]


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image = settings.model.image
    if not isinstance(image, VisionTransformerConfig) or settings.model.text is not None:
        raise WeightsError("a ViT folder holds a vision transformer and no text tower.")
    shape = huggingface.shape_of(image)
    del shape["attention_dropout"]
    config = shape | {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "image_size": settings.data.image_size,
        "patch_size": image.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "torch_dtype": "float32",
    }
    pictures = huggingface.pictures_of(settings.data, settings.model, "ViTImageProcessor")
    return {"config.json": config, "preprocessor_config.json": pictures}


FAMILY = Family(
    name="vit",
    recognises=lambda source: source.config.get("model_type") == "vit",
    describe=_describe,
    rules=_rules,
    ignored=(r"(pooler|classifier|decoder)\..*", r"embeddings\.mask_token"),
    renamed=(
        (r"^vit\.", ""),
        # as the library calls its modules since version 5, which it does not yet write
        (r"^layers\.(\d+)\.attention\.q_proj", r"encoder.layer.\1.attention.attention.query"),
        (r"^layers\.(\d+)\.attention\.k_proj", r"encoder.layer.\1.attention.attention.key"),
        (r"^layers\.(\d+)\.attention\.v_proj", r"encoder.layer.\1.attention.attention.value"),
        (r"^layers\.(\d+)\.attention\.o_proj", r"encoder.layer.\1.attention.output.dense"),
        (r"^layers\.(\d+)\.mlp\.fc1", r"encoder.layer.\1.intermediate.dense"),
        (r"^layers\.(\d+)\.mlp\.fc2", r"encoder.layer.\1.output.dense"),
        (r"^layers\.(\d+)\.", r"encoder.layer.\1."),
    ),
    fresh=("log_scale",),
    files=_files,
)
