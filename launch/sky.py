"""What to ask SkyPilot for.

    contrastive launch sky --on=launch/sky.py:h100-16 --on.bucket=s3://… --dry-run \
        -- train --config=configs/clip.py:b16 --workdir=/checkpoints/b16
"""

from ml_collections import ConfigDict

_TOPOLOGIES = {"h100-8": "h100:1x8", "h100-16": "h100:2x8"}


def get_machine(kind: str = "h100-8") -> ConfigDict:
    """Other keys have the default of contrastive.launching.sky.SkyMachine."""
    config = ConfigDict()
    config.topology = _TOPOLOGIES[kind]
    config.bucket = "s3://BUCKET"
    return config
