"""What to ask a Kubernetes cluster for; name your own image, bucket and queue.

    contrastive launch gke --on=launch/gke.py:v5e-256 --on.image=… --on.bucket=… \
        -- train --config=configs/clip.py:b16 --workdir=/bucket/b16
"""

from ml_collections import ConfigDict

_TOPOLOGIES = {"v5e-256": "v5e:16x16", "v5e-512": "v5e:16x16*2", "h100-64": "h100:8x8"}


def get_machine(kind: str = "v5e-256") -> ConfigDict:
    """Other keys have the default of contrastive.launching.gke.GkeMachine."""
    config = ConfigDict()
    config.topology = _TOPOLOGIES[kind]
    config.image = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/contrastive:latest"
    config.bucket = "BUCKET"  # with a hierarchical namespace: renames of folders are one step
    config.queue = "training"  # the LocalQueue of Kueue
    return config
