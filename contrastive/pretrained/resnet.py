"""Residual networks: transformers' ResNets, an image tower without a text tower; and CLIP with one,
as open_clip names it."""

import dataclasses
from typing import Any

from contrastive.data.config import DataConfig
from contrastive.data.transforms import STRETCHES, TAKES_MIDDLE
from contrastive.errors import WeightsError
from contrastive.pretrained import huggingface, layouts, open_clip
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import ResNetConfig, TwoTowerConfig

_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_STRETCHED_FROM = 384  # pixels; smaller pictures lose their borders
_CONVOLUTION = "p q c w -> w c p q"
_BUFFERS = (r".*\.num_batches_tracked",)


def _convolution(ours: str, convolution: str, norm: str) -> list[Rule]:
    """A convolution and its batch normalisation, of PyTorch."""
    names = {
        "scale": "weight",
        "bias": "bias",
        "mean": "running_mean",
        "variance": "running_var",
    }
    return [
        Rule(f"{ours}/kernel", f"{convolution}.weight", _CONVOLUTION),
        *(Rule(f"{ours}/norm/{name}", f"{norm}.{theirs}") for name, theirs in names.items()),
    ]


def _stages(config: ResNetConfig) -> list[tuple[int, int, int, bool]]:
    """Stage, block, convolutions and whether there is a shortcut, of each block."""
    out, inputs = [], config.stem
    for i, (outputs, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        for j in range(depth):
            stride = config.stride(i, j)
            convolutions = 3 if config.block == "bottleneck" else 2
            out.append((i, j, convolutions, inputs != outputs or stride != 1))
            inputs = outputs
    return out


def numbers(config: Settings, name: str, default: list[int]) -> tuple[int, ...]:
    """One whole number a stage."""
    found = config.get(name, default)
    if not found or any(type(number) is not int or number < 1 for number in found):
        raise WeightsError(f"{config.where}: {name} = {found!r} has to list numbers above 0.")
    return tuple(found)


def depths(source: Source, config: Settings, name: str, default: list[int]) -> tuple[int, ...]:
    """Blocks of each stage. Each is built by itself, so more than there are tensors for are told
    before: a configuration may claim any number."""
    found = numbers(config, name, default)
    count = len(source.tensors) if source.weights.is_file() else sum(found)  # being written
    if sum(found) > count:
        raise WeightsError(
            f"{config.where}: {name} = {list(found)} asks for {sum(found)} blocks; "
            f"{source.weights} has {count} tensors."
        )
    return found


# --- transformers -----------------------------------------------------------------------------


def pictures(source: Source) -> tuple[int, huggingface.Pictures]:
    """Size and preparation of the pictures, by the rules of ConvNeXt's processor: below 384 pixels
    the middle of a larger picture, from there on the whole picture, stretched."""
    file = "preprocessor_config.json"
    given = source.json(file) or {}
    wanted = given.get("size", 224)
    if isinstance(wanted, dict):
        wanted = wanted.get("shortest_edge", wanted.get("height", 224))
    size = Settings({"size": wanted}, str(source.folder / file)).count("size")
    return size, huggingface.pictures(
        source, size, _IMAGENET | {"size": {"shortest_edge": size}, "crop_pct": 0.875}
    )


def pictures_file(settings: Description) -> dict[str, Any]:
    """:func:`pictures` backwards.

    Raises:
      WeightsError: The processor has another rule for pictures of this size.
    """
    data, size = settings.data, settings.data.image_size
    takes = TAKES_MIDDLE if size < _STRETCHED_FROM else STRETCHES
    if data.preprocessing not in takes:
        raise WeightsError(
            f"its processor has no rule like config.data.preprocessing = {data.preprocessing!r} "
            f"for pictures of {size} pixels; it has {' and '.join(takes)}."
        )
    share = {"crop_pct": data.resize.share} if size < _STRETCHED_FROM else {"crop_pct": 1.0}
    common = huggingface.pixels_of(data, settings.model, "ConvNextImageProcessor")
    return common | {"size": {"shortest_edge": size}} | share


def _describe(source: Source) -> Description:
    config = Settings(source.config, str(source.folder / "config.json"))
    if config.get("hidden_act", "relu") != "relu":
        raise WeightsError(
            f"{config.where}: hidden_act = {config.get('hidden_act')!r}; known is relu."
        )
    size, shown = pictures(source)
    widths = numbers(config, "hidden_sizes", [256, 512, 1024, 2048])
    block = config.get("layer_type", "bottleneck")
    if block not in ("bottleneck", "basic"):
        raise WeightsError(
            f"{config.where}: layer_type = {block!r} is not known; known are bottleneck and basic."
        )
    image = ResNetConfig(
        block=block,
        stem=config.count("embedding_size", 64),
        widths=widths,
        depths=depths(source, config, "depths", [3, 4, 6, 3]),
        first_stride=2 if config.get("downsample_in_first_stage", False) else 1,
        early_stride=config.get("downsample_in_bottleneck", False),
    )
    return Description(
        data=DataConfig(image_size=size, **shown.data),
        model=TwoTowerConfig(
            image=image,
            text=None,
            embedding_dim=widths[-1],
            pixel_mean=shown.mean,
            pixel_std=shown.std,
        ),
    )


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, ResNetConfig)
    stem = "embedder.embedder"
    rules = _convolution("image/stem/0", f"{stem}.convolution", f"{stem}.normalization")
    for i, j, convolutions, shortcut in _stages(image):
        ours, theirs = f"image/stages/{i}/{j}", f"encoder.stages.{i}.layers.{j}"
        parts = {f"branch/{n}": f"layer.{n}" for n in range(convolutions)}
        parts |= {"shortcut": "shortcut"} if shortcut else {}
        for mine, name in parts.items():
            full = f"{theirs}.{name}"
            rules += _convolution(f"{ours}/{mine}", f"{full}.convolution", f"{full}.normalization")
    return rules


def _files(settings: Description) -> dict[str, dict[str, Any]]:
    image = settings.model.image
    if not isinstance(image, ResNetConfig) or settings.model.text is not None:
        raise WeightsError("a ResNet folder holds a residual network and no text tower.")
    config = {
        "architectures": ["ResNetModel"],
        "model_type": "resnet",
        "layer_type": image.block,
        "embedding_size": image.stem,
        "hidden_sizes": list(image.widths),
        "depths": list(image.depths),
        "downsample_in_first_stage": image.first_stride == 2,
        "downsample_in_bottleneck": image.early_stride,
        "hidden_act": "relu",
        "num_channels": 3,
        "torch_dtype": "float32",
    }
    return {"config.json": config, "preprocessor_config.json": pictures_file(settings)}


FAMILY = Family(
    name="resnet",
    recognises=lambda source: source.config.get("model_type") == "resnet",
    describe=_describe,
    rules=_rules,
    ignored=(*_BUFFERS, r"classifier\..*"),
    renamed=((r"^resnet\.", ""),),
    fresh=("log_scale",),
    files=_files,
)


# --- open_clip --------------------------------------------------------------------------------


def _describe_clip(source: Source) -> Description:
    config = open_clip.model_settings(source)
    vision = config.group("vision_cfg")
    width, blocks = vision.count("width", 64), depths(source, vision, "layers", [])
    tower = ResNetConfig(
        form="clip",
        stem=width,
        widths=tuple(width * 4 * 2**i for i in range(len(blocks))),
        depths=blocks,
        heads=max(1, width * 32 // vision.count("head_width", 64)),
        projection="bias",
    )
    return open_clip.describe(source, tower)


def _clip_rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, ResNetConfig)
    rules: list[Rule] = []
    for i in range(3):
        rules += _convolution(f"image/stem/{i}", f"visual.conv{i + 1}", f"visual.bn{i + 1}")
    for i, j, convolutions, shortcut in _stages(image):
        ours, theirs = f"image/stages/{i}/{j}", f"visual.layer{i + 1}.{j}"
        for n in range(convolutions):
            rules += _convolution(
                f"{ours}/branch/{n}", f"{theirs}.conv{n + 1}", f"{theirs}.bn{n + 1}"
            )
        if shortcut:
            down = f"{theirs}.downsample"
            rules += _convolution(f"{ours}/shortcut", f"{down}.0", f"{down}.1")
    pool = "visual.attnpool"
    each = [f"{pool}.{letter}_proj" for letter in "qkv"]
    return [
        *rules,
        Rule("image/pool/positions", f"{pool}.positional_embedding"),
        Rule("image/pool/qkv", tuple(f"{name}.weight" for name in each), layouts.QKV),
        Rule("image/pool/qkv_bias", tuple(f"{name}.bias" for name in each), layouts.QKV_BIAS),
        *layouts.linear("image/projection", f"{pool}.c_proj"),
        *open_clip.text_rules(settings),
        *open_clip.scalar_rules(settings),
    ]


def _is_clip(source: Source) -> bool:
    layers = open_clip.model_settings(source).group("vision_cfg").values.get("layers")
    return open_clip.recognises(source) and isinstance(layers, list)


def _clip_files(settings: Description) -> dict[str, dict[str, Any]]:
    image = settings.model.image
    if not isinstance(image, ResNetConfig) or image.form != "clip":
        raise WeightsError("its image tower is not CLIP's residual network")
    vision = {
        "image_size": settings.data.image_size,
        "layers": list(image.depths),
        "width": image.stem,
        "head_width": image.stem * 32 // image.heads,
        "patch_size": None,
    }
    return open_clip.files(settings, vision)


CLIP = dataclasses.replace(
    open_clip.FAMILY,
    name="open_clip_resnet",
    recognises=_is_clip,
    describe=_describe_clip,
    rules=_clip_rules,
    ignored=(*open_clip.FAMILY.ignored, *_BUFFERS),
    files=_clip_files,
)
