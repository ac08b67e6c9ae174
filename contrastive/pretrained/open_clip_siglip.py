"""SigLIP as open_clip names it: its text tower is open_clip's, its image tower one of the timm
library, which the configuration only names. Sizes are read from the tensors, the number of heads
from the name."""

import dataclasses
import re

from contrastive.data.config import DataConfig
from contrastive.errors import WeightsError
from contrastive.objectives import LossConfig
from contrastive.pretrained import huggingface, layouts, open_clip
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import TwoTowerConfig, VisionTransformerConfig
from contrastive.towers.layers import Activation

_NAME = re.compile(r"vit_(tiny|small|base|large|so400m|giantopt)_patch(\d+)_siglip_(\d+)(\..*)?")
_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "so400m": 16, "giantopt": 16}
# Models of timm whose image tower has the tanh form of GELU; the others have the exact one.
_TANH = re.compile(
    r"vit_(base_patch32_siglip_256|large_patch16_siglip_512"
    r"|so400m_patch16_siglip_\d+|giantopt_patch16_siglip_\d+).*"
)
_BLOCK = {
    "norm1": "norm1",
    "norm2": "norm2",
    "qkv": "attn.qkv",
    "out": "attn.proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_TRUNK = "visual.trunk."


def _size(vision: Settings) -> re.Match[str]:
    name = vision.get("timm_model_name")
    found = _NAME.fullmatch(str(name))
    if found is None or (vision.get("timm_pool", "avg"), vision.get("timm_proj", "linear")) != (
        "map",
        "none",
    ):
        raise WeightsError(
            f"{vision.where}: timm_model_name = {name!r} is not known here; known are SigLIP's "
            "vit_SIZE_patchN_siglip_PIXELS with timm_pool 'map' and timm_proj 'none'."
        )
    return found


def _describe(source: Source) -> Description:
    config = open_clip.model_settings(source)
    vision, text = config.group("vision_cfg"), config.group("text_cfg")
    size = _size(vision)
    image_size = huggingface.square(vision, "image_size", int(size[3]))
    tower = open_clip.text_tower(text, quick=False)
    read, shown = open_clip.texts(source, text), open_clip.pictures(source)
    width, depth, hidden = _sizes(source, size[1])
    tanh: Activation = "gelu_tanh" if _TANH.fullmatch(size[0]) else "gelu"
    return Description(
        data=DataConfig(
            image_size=image_size,
            text_length=tower.length,
            tokenizer=read.config,
            **shown.data,
        ),
        model=TwoTowerConfig(
            image=VisionTransformerConfig(
                width=width,
                depth=depth,
                heads=_HEADS[size[1]],
                mlp_ratio=hidden / width,
                activation=tanh,
                epsilon=1e-6,
                init="siglip",
                patch_size=int(size[2]),
                pooling="map",
                projection="none",
            ),
            text=dataclasses.replace(tower, init="siglip"),
            embedding_dim=config.count("embed_dim"),
            pixel_mean=shown.mean,
            pixel_std=shown.std,
        ),
        loss=LossConfig(name="siglip"),
        vocabulary=read.vocabulary,
        pad_id=1,
    )


def _sizes(source: Source, name: str) -> tuple[int, int, int]:
    """Width, depth and hidden units, which only the tensors say."""
    first = source.tensors.get(f"{_TRUNK}blocks.0.mlp.fc1.weight")
    if first is None or first.ndim != 2:
        raise WeightsError(f"{source.weights} has no {_TRUNK}blocks.0.mlp.fc1.weight.")
    numbers = {
        int(match[1])
        for key in source.tensors
        if (match := re.match(rf"{re.escape(_TRUNK)}blocks\.(\d+)\.", key))
    }
    return first.shape[1], max(numbers) + 1, first.shape[0]


def _rules(settings: Description) -> list[Rule]:
    image = settings.model.image
    assert isinstance(image, VisionTransformerConfig)
    pool = f"{_TRUNK}attn_pool."
    return [
        *layouts.patches("image/patches", f"{_TRUNK}patch_embed.proj", image.patch_size, bias=True),
        Rule("image/positions", f"{_TRUNK}pos_embed", "n w -> 1 n w"),
        *layouts.blocks("image/transformer/blocks", f"{_TRUNK}blocks.{{}}.", _BLOCK),
        *layouts.norm("image/norm", f"{_TRUNK}norm"),
        Rule("image/head/query", f"{pool}latent", layouts.ROW_3D),
        *layouts.split_attention("image/head/attention", f"{pool}q", f"{pool}kv", f"{pool}proj"),
        *layouts.norm("image/head/norm", f"{pool}norm"),
        *layouts.linear("image/head/mlp/up", f"{pool}mlp.fc1"),
        *layouts.linear("image/head/mlp/down", f"{pool}mlp.fc2"),
        *open_clip.in_text(open_clip.text_rules(settings)),
        *open_clip.scalar_rules(settings),
    ]


def _is_siglip(source: Source) -> bool:
    vision = open_clip.model_settings(source).group("vision_cfg").values
    return open_clip.recognises(source) and "timm_model_name" in vision


FAMILY = Family(
    name="open_clip_siglip",
    recognises=_is_siglip,
    describe=_describe,
    rules=_rules,
    weights_name="open_clip_model.safetensors",
    resampling="bicubic_antialias",
)
