"""Everything that can be set about what happens to training pictures."""

import dataclasses
import math
from typing import Literal

from contrastive.data.stacks import STACKS, Stack
from contrastive.errors import ConfigError

_ROOM = 1.5  # pictures are kept this much larger than the tower's input while geometry is pending


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResizeConfig:
    """How pictures are resized, where a model wants it otherwise than bicubic and whole."""

    interpolation: Literal["bicubic", "bilinear", "lanczos", "nearest"] = "bicubic"
    # Of the rules that take the middle of a resized picture: the side of the middle over the
    # shorter side (0.875 of many ResNets), and where it lies if as many pixels cannot be left on
    # both sides: round = as torchvision and open_clip do, floor = as transformers does.
    share: float = 1.0
    centre: Literal["round", "floor"] = "round"
    patch: int = 16  # of the rule naflex: side of the patches that a picture is cut into

    def __post_init__(self) -> None:
        if self.patch < 1:
            raise ConfigError(f"config.data.resize.patch = {self.patch} has to be positive.")
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"config.data.resize.share = {self.share} has to be above 0 and at most 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CropConfig:
    """A random part of each training picture, resized, before anything else is done to it."""

    # Share of the picture's area; None = the whole picture. (0.9, 1.0) is open_clip's, (0.2, 1.0)
    # MoCo's, (0.08, 1.0) SimCLR's.
    area: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height

    def __post_init__(self) -> None:
        if self.area is not None and not 0 < self.area[0] <= self.area[1] <= 1:
            raise ConfigError(
                f"config.data.crop.area = {self.area} has to be two shares, the smaller one first."
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(
                f"config.data.crop.ratio = {self.ratio} has to be two positive ratios, the smaller "
                "one first."
            )
        if self.area is None and self.ratio != (3 / 4, 4 / 3):
            raise ConfigError("config.data.crop.ratio has no effect without config.data.crop.area.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How far training pictures are changed. 0 = off."""

    zoom: float = 0.2  # size times or divided by up to 1 + zoom
    stretch: float = 0.1  # width over height times or divided by up to 1 + stretch
    shift: float = 0.1  # moved by up to this share of the side, each way
    rotate: float = 10.0  # turned by up to so many degrees, each way
    flip: float = 0.0  # share of pictures that are mirrored (arrows and letters change meaning)
    brightness: float = 0.2  # all values times 1 - brightness ... 1 + brightness
    contrast: float = 0.2  # distance from the mean grey times 1 - contrast ... 1 + contrast
    saturation: float = 0.3  # distance from grey times 1 - saturation ... 1 + saturation
    hue: float = 10.0  # colours turned around the grey axis by up to so many degrees
    grayscale: float = 0.05  # share of pictures that lose their colour
    blur: float = 0.1  # share of pictures that are blurred (3 x 3, of random weight)
    cutout: float = 0.0  # a rectangle of up to this share of each side gets the mean colour

    def __post_init__(self) -> None:
        shares = ("shift", "flip", "brightness", "contrast", "grayscale", "blur", "cutout")
        limits = {**dict.fromkeys(shares, 1.0), "rotate": 180.0, "hue": 180.0}
        for field in dataclasses.fields(self):
            value, limit = getattr(self, field.name), limits.get(field.name, math.inf)
            if not 0 <= value <= limit:
                raise ConfigError(
                    f"config.data.augment.{field.name} = {value} has to lie between 0 and "
                    f"{limit:g}."
                )

    @property
    def geometric(self) -> bool:
        """Whether pictures are moved at all."""
        return any((self.zoom, self.stretch, self.shift, self.rotate, self.flip))

    def room(self, image_size: int) -> int:
        """The side at which pictures wait for their geometry."""
        return math.ceil(image_size * _ROOM) if self.geometric else image_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The augmentation of a published method, in place of ``crop`` and ``augment``."""

    # Random part, mirror, colour jitter, loss of colour, blur, solarization with the numbers of
    # SimCLR or of MoCo; None = config.data.crop and augment.
    name: Literal["simclr", "moco_v1", "moco_v2", "moco_v3"] | None = None
    strength: float = 1.0  # of the colour jitter, times the method's own (SimCLR: 0.5 for CIFAR)
    blur: bool = True  # small pictures are better off without (SimCLR's for CIFAR has none)

    def __post_init__(self) -> None:
        if self.name is None and (self.strength, self.blur) != (1.0, True):
            raise ConfigError(
                "config.data.stack.strength and blur have no effect without config.data.stack.name."
            )
        if not 0 <= self.strength <= 2:
            raise ConfigError(
                f"config.data.stack.strength = {self.strength} has to lie between 0 and 2."
            )

    @property
    def stack(self) -> Stack | None:
        """The numbers."""
        if self.name is None:
            return None
        return STACKS[self.name].scaled(self.strength, blur=self.blur)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugmentConfig:
    """RandAugment (Cubuk et al. 2020): a few operations drawn anew for each picture."""

    operations: int = 0  # how many, one after another; 0 = off
    magnitude: float = 9.0  # of all; the paper's scale, on which 10 is AutoAugment's largest

    def __post_init__(self) -> None:
        if self.operations < 0:
            raise ConfigError(
                f"config.data.rand_augment.operations = {self.operations} cannot be negative."
            )
        if not 0 <= self.magnitude <= 30:
            raise ConfigError(
                f"config.data.rand_augment.magnitude = {self.magnitude} has to lie between 0 and "
                "30."
            )
        if not self.operations and self.magnitude != 9.0:
            raise ConfigError(
                "config.data.rand_augment.magnitude has no effect without operations."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """The two views of a picture, and small crops beside them (multi-crop: Caron et al.,
    Unsupervised learning of visual features by contrasting cluster assignments, 2020)."""

    # What the second view is of: the same picture, or another one of the same content (such as
    # another artist's drawing), drawn anew each epoch, where there is one
    second: Literal["picture", "content"] = "picture"
    small: int = 0  # small crops a picture; 0 = none
    small_size: int = 96  # their side in pixels
    small_area: tuple[float, float] = (0.05, 0.14)  # their share of the picture's area

    def __post_init__(self) -> None:
        if self.small < 0 or self.small_size < 1:
            raise ConfigError(
                f"config.data.views: there cannot be {self.small} small crops of {self.small_size} "
                "pixels."
            )
        if not 0 < self.small_area[0] <= self.small_area[1] <= 1:
            raise ConfigError(
                f"config.data.views.small_area = {self.small_area} has to be two shares, the "
                "smaller one first."
            )
        if not self.small and (self.small_size, self.small_area) != (96, (0.05, 0.14)):
            raise ConfigError(
                "config.data.views.small_size and small_area have no effect without small crops, "
                "config.data.views.small."
            )
