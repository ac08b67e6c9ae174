"""SigLIP (Zhai et al. 2023) and SigLIP 2 of a fixed size (Tschannen et al. 2025) as transformers
names and configures them. They differ in the vocabulary and in how pictures are resized."""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.objectives import LossConfig
from contrastive.pretrained import clip, huggingface, layouts
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TextTransformerConfig, TwoTowerConfig, VisionTransformerConfig


def vision_tower(vision: Settings) -> VisionTransformerConfig:
    """The image tower of a configuration."""
    return VisionTransformerConfig(
        **huggingface.shape(vision, width=768, hidden=3072, depth=12, heads=12),
        activation=huggingface.activation(vision, "gelu_pytorch_tanh"),
        epsilon=vision.get("layer_norm_eps", 1e-6),
        init="siglip",
        patch_size=huggingface.square(vision, "patch_size", 16),
        pooling="map",
        projection="none",
    )


def text_tower(text: Settings) -> TextTransformerConfig:
    """The text tower of a configuration."""
    return TextTransformerConfig(
        **huggingface.shape(text, width=768, hidden=3072, depth=12, heads=12),
        activation=huggingface.activation(text, "gelu_pytorch_tanh"),
        epsilon=text.get("layer_norm_eps", 1e-6),
        init="siglip",
        vocabulary_size=text.get("vocab_size", 32000),
        length=text.get("max_position_embeddings", 64),
        padding="read",
        pooling="last",
        projection="bias",
    )


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    text, vision = config.group("text_config"), config.group("vision_config")
    if not vision.get("vision_use_head", True):
        raise WeightsError(f"{vision.where}: vision_use_head is false; the pooling head is needed.")
    size = huggingface.square(vision, "image_size", 224)
    square = {"height": size, "width": size}
    pictures = huggingface.pictures(
        source,
        size,
        {"size": square, "image_mean": huggingface.HALF, "image_std": huggingface.HALF},
    )
    texts = huggingface.texts(source)
    image = vision_tower(vision)
    dim = text.get("projection_size", text.get("hidden_size", 768))
    if dim != image.width:
        raise WeightsError(
            f"{config.where}: rows of texts have {dim} entries, of pictures {image.width}."
        )
    tower = text_tower(text)
    return Description(
        data=DataConfig(
            image_size=size, text_length=tower.length, tokenizer=texts.config, **pictures.data
        ),
        model=TwoTowerConfig(
            image=image,
            text=tower,
            embedding_dim=dim,
            pixel_mean=pictures.mean,
            pixel_std=pictures.std,
        ),
        loss=LossConfig(name="siglip"),
        vocabulary=texts.vocabulary,
        pad_id=1,
    )


def pool_rules(ours: str, theirs: str) -> list[Rule]:
    """Names of the attention pooling head."""
    names = {"qkv": f"{theirs}.attention.in_proj_", "out": f"{theirs}.attention.out_proj"}
    return [
        Rule(f"{ours}/query", f"{theirs}.probe", layouts.ROW_3D),
        *layouts.attention(f"{ours}/attention", names),
        *layouts.norm(f"{ours}/norm", f"{theirs}.layernorm"),
        *layouts.linear(f"{ours}/mlp/up", f"{theirs}.mlp.fc1"),
        *layouts.linear(f"{ours}/mlp/down", f"{theirs}.mlp.fc2"),
    ]


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    patch = "vision_model.embeddings.patch_embedding"
    return [
        *layouts.patches("image/patches", patch, image.patch_size, bias=True),
        *rules_behind_patches(),
    ]


def rules_behind_patches() -> list[Rule]:
    """What the families of SigLIP have in common: all but the patches."""
    vision = "vision_model."
    return [
        Rule("image/positions", f"{vision}embeddings.position_embedding.weight"),
        *layouts.blocks(
            "image/transformer/blocks", f"{vision}encoder.layers.{{}}.", huggingface.BLOCK
        ),
        *layouts.norm("image/norm", f"{vision}post_layernorm"),
        *pool_rules("image/head", f"{vision}head"),
        *clip.text_rules(),
        *layouts.linear("text/projection", "text_model.head"),
        Rule("log_scale", "logit_scale", layouts.ONE),
        Rule("bias", "logit_bias", layouts.ONE),
    ]


def text_config(
    settings: Description, text: TextTransformerConfig, model_type: str
) -> dict[str, Any]:
    """The configuration of the text tower."""
    return huggingface.shape_of(text) | {
        "model_type": model_type,
        "vocab_size": settings.vocabulary_size,
        "max_position_embeddings": text.length or settings.data.text_length,
        "projection_size": settings.model.embedding_dim,
        "eos_token_id": settings.end_id,
        "pad_token_id": settings.pad_id,
        "bos_token_id": settings.begin_id,
    }


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image, text = settings.model.image, settings.model.text
    if not isinstance(image, VisionTransformerConfig) or not isinstance(
        text, TextTransformerConfig
    ):
        raise WeightsError("a SigLIP folder holds a vision transformer and a text transformer.")
    return {
        "config.json": {
            "architectures": ["SiglipModel"],
            "model_type": "siglip",
            "torch_dtype": "float32",
            "text_config": text_config(settings, text, "siglip_text_model"),
            "vision_config": huggingface.shape_of(image)
            | {
                "model_type": "siglip_vision_model",
                "image_size": settings.data.image_size,
                "patch_size": image.patch_size,
                "num_channels": 3,
            },
        },
        "preprocessor_config.json": huggingface.pictures_of(
            settings.data, settings.model, "SiglipImageProcessor"
        ),
    }


FAMILY = Family(
    name="siglip",
    recognises=lambda source: source.config.get("model_type") == "siglip",
    describe=_describe,
    rules=_rules,
    ignored=(r".*\.position_ids",),
    files=_files,
    tokenizer_class="PreTrainedTokenizerFast",
)
