"""What to ask Cloud TPU for; name your own zone, repository and bucket.

    contrastive launch tpu --on=launch/tpu.py:v5e-256 --on.zone=us-west4-a --on.bucket=… \
        --on.repository=… -- train --config=configs/clip.py:b16 --workdir=/mnt/bucket/b16
"""

from ml_collections import ConfigDict

_TOPOLOGIES = {"v5e-16": "v5e:4x4", "v5e-256": "v5e:16x16", "v5p-128": "v5p:4x4x8"}


def get_machine(kind: str = "v5e-256") -> ConfigDict:
    """Other keys have the default of contrastive.launching.tpu.TpuMachine."""
    config = ConfigDict()
    config.topology = _TOPOLOGIES[kind]
    config.zone = "ZONE"
    config.repository = "REPOSITORY"
    config.bucket = "BUCKET"
    config.spot = True
    return config
