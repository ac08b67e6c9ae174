"""SigLIP 2 for pictures of any aspect, NaFlex (Tschannen et al. 2025), as transformers names it."""

import math
from typing import Any

from contrastive.data.config import DataConfig
from contrastive.data.picture_config import ResizeConfig
from contrastive.errors import WeightsError
from contrastive.objectives import LossConfig
from contrastive.pretrained import huggingface, layouts, siglip
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import NaFlexConfig, TextTransformerConfig, TwoTowerConfig


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    text, vision = config.group("text_config"), config.group("vision_config")
    if not vision.get("vision_use_head", True):
        raise WeightsError(f"{vision.where}: vision_use_head is false; the pooling head is needed.")
    places = vision.count("num_patches", 256)
    grid, patch = math.isqrt(places), huggingface.square(vision, "patch_size", 16)
    if grid * grid != places:
        raise WeightsError(f"{vision.where}: num_patches = {places} is no square.")
    file = "preprocessor_config.json"
    given = Settings(source.json(file) or {}, str(source.folder / file))
    most = given.count("max_num_patches", 256)
    side = math.isqrt(most)
    if side * side != most or given.get("patch_size", patch) != patch:
        raise WeightsError(
            f"{given.where}: max_num_patches = {most} has to be a square and patch_size {patch}."
        )
    square = {"height": side * patch, "width": side * patch}
    defaults = {"resample": 2, "image_mean": huggingface.HALF, "image_std": huggingface.HALF}
    pictures = huggingface.pictures(source, side * patch, defaults | {"size": square})
    texts, tower = huggingface.texts(source), siglip.text_tower(text)
    image = NaFlexConfig(
        **huggingface.shape(vision, width=768, hidden=3072, depth=12, heads=12),
        activation=huggingface.activation(vision, "gelu_pytorch_tanh"),
        epsilon=vision.get("layer_norm_eps", 1e-6),
        init="siglip",
        patch_size=patch,
        grid=grid,
        projection="none",
    )
    how = pictures.data["resize"].interpolation
    return Description(
        data=DataConfig(
            image_size=side * patch,
            preprocessing="naflex",
            resize=ResizeConfig(interpolation=how, patch=patch),
            text_length=tower.length,
            tokenizer=texts.config,
        ),
        model=TwoTowerConfig(
            image=image,
            text=tower,
            embedding_dim=text.get("projection_size", text.get("hidden_size", 768)),
            pixel_mean=pictures.mean,
            pixel_std=pictures.std,
        ),
        loss=LossConfig(name="siglip"),
        vocabulary=texts.vocabulary,
    )


def _rules(settings: Description) -> list[Rule]:
    return [
        *layouts.linear("image/patches", "vision_model.embeddings.patch_embedding"),
        *siglip.rules_behind_patches(),
    ]


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image, text, data = settings.model.image, settings.model.text, settings.data
    if not isinstance(image, NaFlexConfig) or not isinstance(text, TextTransformerConfig):
        raise WeightsError("a SigLIP 2 folder holds a NaFlex tower and a text transformer.")
    return {
        "config.json": {
            "architectures": ["Siglip2Model"],
            "model_type": "siglip2",
            "torch_dtype": "float32",
            "text_config": siglip.text_config(settings, text, "siglip2_text_model"),
            "vision_config": huggingface.shape_of(image)
            | {
                "model_type": "siglip2_vision_model",
                "num_patches": image.grid**2,
                "patch_size": image.patch_size,
                "num_channels": 3,
            },
        },
        "preprocessor_config.json": huggingface.pixels_of(
            data, settings.model, "Siglip2ImageProcessor"
        )
        | {
            "patch_size": image.patch_size,
            "max_num_patches": (data.image_size // data.resize.patch) ** 2,
        },
    }


FAMILY = Family(
    name="siglip2",
    recognises=lambda source: source.config.get("model_type") == "siglip2",
    describe=_describe,
    rules=_rules,
    ignored=(r".*\.position_ids",),
    files=_files,
    tokenizer_class="PreTrainedTokenizerFast",
)
