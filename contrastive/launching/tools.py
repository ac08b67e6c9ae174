"""Commands of other systems: found, run, and their refusals turned into a next step."""

import re
import shutil
import subprocess
from collections.abc import Sequence

from contrastive.errors import UserError

_WHERE = {
    "sbatch": "run this on a login node of the cluster (Debian: apt install slurm-client)",
    "gcloud": "install the Google Cloud CLI and log in with gcloud auth login",
    "kubectl": "install kubectl and get the cluster's credentials with gcloud container clusters "
    "get-credentials",
    "sky": "pip install skypilot, then sky check",
}

# What a refusal says, and what to do about it
_REFUSALS = (
    (r"[Mm]unge", "munged does not run on this machine: start it (systemctl start munge)"),
    (
        r"[Uu]nable to contact slurm controller|[Cc]onnection refused|connect failure",
        "the server does not answer: see whether it runs and is reached from here",
    ),
    (
        r"[Qq]uota|RESOURCE_EXHAUSTED.*limit|QOS\w*Limit|QOS policy|exceeded.*limit",
        "the quota or limit is used up: ask for less, wait, try another zone or partition, or have "
        "it raised",
    ),
    (
        r"no more capacity|[Ss]tockout|ZONE_RESOURCE_POOL_EXHAUSTED|RESOURCE_EXHAUSTED",
        "there is no free capacity: try another zone or reserved capacity, or wait",
    ),
    (r"[Ii]nvalid partition", "sinfo lists the partitions; set --on.partition"),
    (r"[Ii]nvalid account", "set --on.account to one that you may use"),
    (r"node configuration is not available", "ask for nodes, GPUs and memory that sinfo shows"),
    (
        r"PERMISSION_DENIED|[Ff]orbidden|[Pp]ermission|not authorized",
        "your account may not do this: have the role granted, or set another project or account",
    ),
    (r"UNAUTHENTICATED|[Rr]eauthentication|gcloud auth login", "log in with gcloud auth login"),
    (
        r"no matches for kind \"?JobSet",
        "the cluster has no JobSet controller: install it (docs/launch/gke.md)",
    ),
    (
        r"[Ff]ield is immutable",
        "one of this name is there, with other settings: let it end and delete it (kubectl delete "
        "jobset NAME), or choose another --on.name",
    ),
    (
        r"resolve_ctls_from_dns_srv|establish a configuration source",
        "this machine knows no SLURM cluster: run it on a login node",
    ),
    (
        r"[Ii]nvalid job array",
        "the cluster's MaxArraySize (scontrol show config) is smaller than the number of trials: "
        "make several sweeps of it",
    ),
    (r"ALREADY_EXISTS|already exists", "choose another --on.name, or delete what is there first"),
)


def find_tool(name: str) -> str:
    """The path of a command.

    Raises:
      UserError: It is not there; says where it comes from.
    """
    path = shutil.which(name)
    if path is None:
        raise UserError(
            f"the command {name} is not on this machine: {_WHERE[name]}; --dry-run prints what "
            "would be done without it."
        )
    return path


def run_tool(command: Sequence[str], *, text: str | None = None, seconds: float = 600.0) -> str:
    """Runs a command to its end and returns what it printed.

    Args:
      command: Its name, found by :func:`find_tool`, and its arguments.
      text: Its standard input.
      seconds: How long it may take.

    Raises:
      UserError: It failed; says why and what to do.
    """
    path = find_tool(command[0])
    try:
        done = subprocess.run(
            [path, *command[1:]], input=text, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{command[0]} did not end within {seconds:g} s: see whether its server answers."
        ) from error
    if done.returncode:
        raise UserError(refusal(command[0], done.stderr or done.stdout, done.returncode))
    return done.stdout


def refusal(name: str, said: str, status: int) -> str:
    """One sentence of what a command said when it failed: its reason and the next step."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    step = next((step for pattern, step in _REFUSALS if re.search(pattern, said)), None)
    telling = next((x for x in lines if "error" in x.lower()), lines[-1] if lines else "no reason")
    reason = f"{name} refused with status {status} ({telling[:300].rstrip('.')})"
    return f"{reason}; {step}." if step else f"{reason}."
