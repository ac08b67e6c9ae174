"""Starting a run elsewhere: one machine, SLURM, Kubernetes, TPU VMs. A launcher is a pure function
from settings to text or commands, and a thin runner of those. It changes where, never what."""
