"""ConvNeXt (Liu et al. 2022) as transformers names it: an image tower without a text tower, whose
rows are the mean over places after the last norm. The heads of other tasks are not read."""

from typing import Any

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.pretrained import huggingface, layouts, resnet
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import ConvNeXtConfig, TwoTowerConfig

_CONVOLUTION = "p q c w -> w c p q"


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    size, pictures = resnet.pictures(source)
    widths = resnet.numbers(config, "hidden_sizes", [96, 192, 384, 768])
    first = config.get("layer_scale_init_value", 1e-6)
    image = ConvNeXtConfig(
        widths=widths,
        depths=resnet.depths(source, config, "depths", [3, 3, 9, 3]),
        patch_size=config.count("patch_size", 4),
        activation=huggingface.activation(config, "gelu"),
        layer_scale=first if first > 0 else None,
        last_epsilon=config.get("layer_norm_eps", 1e-12),
        projection="none",
    )
    return Description(
        data=DataConfig(image_size=size, **pictures.data),
        model=TwoTowerConfig(
            image=image,
            text=None,
            embedding_dim=widths[-1],
            pixel_mean=pictures.mean,
            pixel_std=pictures.std,
        ),
    )


def _tower(settings: Description) -> ConvNeXtConfig:
    image = settings.model.image
    if not isinstance(image, ConvNeXtConfig) or settings.model.text is not None:
        raise WeightsError("a ConvNeXt folder holds a ConvNeXt and no text tower.")
    return image


def _convolution(ours: str, theirs: str) -> list[Rule]:
    kernel = Rule(f"{ours}/kernel", f"{theirs}.weight", _CONVOLUTION)
    return [kernel, Rule(f"{ours}/bias", f"{theirs}.bias")]


def _rules(settings: Description) -> list[Rule]:
    image = _tower(settings)
    rules = [
        *_convolution("image/patches", "embeddings.patch_embeddings"),
        *layouts.norm("image/norm_before", "embeddings.layernorm"),
        *layouts.norm("image/norm", "layernorm"),
    ]
    for i in range(len(image.widths)):
        ours, theirs = f"image/stages/{i}", f"encoder.stages.{i}"
        if i:
            rules += layouts.norm(f"{ours}/norm", f"{theirs}.downsampling_layer.0")
            rules += _convolution(f"{ours}/shrinking", f"{theirs}.downsampling_layer.1")
        block, theirs = f"{ours}/blocks", f"{theirs}.layers.{{}}"
        rules += [
            Rule(f"{block}/depthwise", f"{theirs}.dwconv.weight", _CONVOLUTION),
            Rule(f"{block}/depthwise_bias", f"{theirs}.dwconv.bias"),
            *layouts.norm(f"{block}/norm", f"{theirs}.layernorm"),
            *layouts.linear(f"{block}/up", f"{theirs}.pwconv1"),
            *layouts.linear(f"{block}/down", f"{theirs}.pwconv2"),
        ]
        if image.layer_scale is not None:
            rules.append(Rule(f"{block}/after/scale", f"{theirs}.layer_scale_parameter"))
    return rules


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image = _tower(settings)
    if image.epsilon != 1e-6 or image.projection != "none":
        raise WeightsError("the format has epsilon 1e-6 inside the tower, and no projection.")
    config = {
        "architectures": ["ConvNextModel"],
        "model_type": "convnext",
        "hidden_sizes": list(image.widths),
        "depths": list(image.depths),
        "num_stages": len(image.widths),
        "patch_size": image.patch_size,
        "hidden_act": huggingface.ACTIVATION_NAMES[image.activation],
        "layer_norm_eps": image.last_epsilon,
        "layer_scale_init_value": image.layer_scale or 0.0,
        "drop_path_rate": image.drop_path,
        "image_size": settings.data.image_size,
        "num_channels": 3,
        "torch_dtype": "float32",
    }
    return {"config.json": config, "preprocessor_config.json": resnet.pictures_file(settings)}


FAMILY = Family(
    name="convnext",
    recognises=lambda source: source.config.get("model_type") == "convnext",
    describe=_describe,
    rules=_rules,
    ignored=(r"classifier\..*",),
    renamed=((r"^convnext\.", ""),),
    fresh=("log_scale",),
    files=_files,
)
