"""Encoders that turn one view of a pair into a row of the shared embedding space."""

from contrastive.pairs import Pairs
from contrastive.towers.bag import BagConfig, BagTower
from contrastive.towers.convnet import ConvTower, ConvTowerConfig
from contrastive.towers.convnext import ConvNeXt, ConvNeXtConfig
from contrastive.towers.encoder import DenseConfig, Encoder, EncoderConfig, LayerNormConfig
from contrastive.towers.head import HeadConfig, PredictorConfig
from contrastive.towers.naflex import NaFlexConfig, NaFlexTransformer
from contrastive.towers.resnet import ResNet, ResNetConfig
from contrastive.towers.sharding import LOGICAL_AXES, axis_rules
from contrastive.towers.text import POOLINGS, TextTransformer, TextTransformerConfig
from contrastive.towers.two_tower import (
    MissingTower,
    Role,
    TwoTower,
    TwoTowerConfig,
    parameter_count,
)
from contrastive.towers.vit import VisionTransformer, VisionTransformerConfig

__all__ = [
    "LOGICAL_AXES",
    "POOLINGS",
    "BagConfig",
    "BagTower",
    "ConvNeXt",
    "ConvNeXtConfig",
    "ConvTower",
    "ConvTowerConfig",
    "DenseConfig",
    "Encoder",
    "EncoderConfig",
    "HeadConfig",
    "LayerNormConfig",
    "MissingTower",
    "NaFlexConfig",
    "NaFlexTransformer",
    "Pairs",
    "PredictorConfig",
    "ResNet",
    "ResNetConfig",
    "Role",
    "TextTransformer",
    "TextTransformerConfig",
    "TwoTower",
    "TwoTowerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "axis_rules",
    "parameter_count",
]
