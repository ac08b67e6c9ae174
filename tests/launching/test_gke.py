"""JobSets against the published schema, and what decides about restarts."""

import json
import pathlib
import re

import jsonschema
import pytest
import yaml

from contrastive import cli
from contrastive.errors import ConfigError
from contrastive.launching.gke import GkeMachine, dns_name, jobset, manifest
from contrastive.launching.settings import check_workdir

SCHEMA = json.loads((pathlib.Path(__file__).parent / "fixtures" / "jobset.json").read_text())
TOPOLOGIES = ("v5e:2x4", "v5e:16x16", "v5e:16x16*2", "v5p:4x4x8", "h100:1x8", "h100:8x8")


def settings(topology="v5e:16x16", **given):
    return GkeMachine(**{"topology": topology, "image": "i:1", "bucket": "b", **given})


def made(make, topology="v5e:16x16", **given):
    return jobset(make("/bucket/run", launcher="gke"), settings(topology, **given))


def pod_of(resource):
    return resource["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_manifest_is_what_the_schema_asks_for(make, topology, spot):
    text = manifest(made(make, topology, spot=spot, queue="q", priority="p"))
    assert "&" not in text.replace("&&", "")  # no anchors: some tools do not read them
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_the_schema_refuses_what_kubernetes_would_drop(make):
    resource = made(make)
    pod_of(resource)["containers"][0]["image_"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="image_"):
        jsonschema.validate(resource, SCHEMA)


def test_slices_of_tpus(make):
    resource = made(make, "v5e:16x16*2", queue="q")
    assert resource["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    (group,) = resource["spec"]["replicatedJobs"]
    assert group["replicas"] == 2
    job = group["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 64
    pod = pod_of(resource)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "16x16",
    }
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert container["command"][-1].endswith("--workdir=/bucket/run --coordinator=auto")
    assert "'--config=recipe.py:it'\"'\"'s'" in container["command"][-1]


def test_nodes_of_gpus_meet_at_the_first(make):
    (container,) = pod_of(made(make, "h100:8x8"))["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["CONTRASTIVE_COORDINATOR"] == "shapes-1-workers-0-0.shapes-1:8476"
    assert environment["CONTRASTIVE_PROCESSES"] == "8"
    assert environment["XLA_FLAGS"] == "--xla_gpu_nccl_termination_timeout_seconds=2400"
    assert 'CONTRASTIVE_PROCESS="$JOB_COMPLETION_INDEX"' in container["command"][-1]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    record = json.loads(environment["CONTRASTIVE_LAUNCH"])
    assert record["launcher"] == "gke"


def message(status, index):
    """As Kubernetes words the failure of a job by a rule of its pods."""
    return (
        f"Container train for pod default/x failed with exit code {status} matching FailJob rule "
        f"at index {index}"
    )


@pytest.mark.parametrize(
    "status, action",
    [
        (2, "FailJobSet"),
        (143, "RestartJobSetAndIgnoreMaxRestarts"),
        (138, "RestartJobSetAndIgnoreMaxRestarts"),
        (75, None),
        (3, None),
        (137, None),
    ],
)
def test_exit_statuses_decide_about_restarts(make, status, action):
    spec = made(make)["spec"]
    rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    values = [rule.get("onExitCodes", {"values": ()})["values"] for rule in rules]
    index = next((i for i, listed in enumerate(values) if status in listed), None)
    chosen = None
    if index is not None:  # the job fails for the reason PodFailurePolicy, with this message
        for rule in spec["failurePolicy"]["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [".*"])
            if any(re.search(pattern, message(status, index)) for pattern in patterns):
                chosen = rule["action"]
                break
    assert chosen == action


def test_a_preempted_host_is_not_counted(make):
    spec = made(make)["spec"]
    rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[-1]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    said = "Pod default/x has condition DisruptionTarget matching FailJob rule at index 2"
    first = spec["failurePolicy"]["rules"][0]
    assert not any(re.search(p, said) for p in first["onJobFailureMessagePatterns"])


def test_names_that_kubernetes_takes():
    assert dns_name("CLIP b/16 (α)") == "clip-b-16"
    assert len(dns_name("x" * 99)) == 40
    assert dns_name("α") == "run"
    assert dns_name("7b") == "run-7b"  # a service's name begins with a letter


def run(*arguments, workdir="/bucket/run"):
    train = ("--", "train", "--config=configs/emoji.py:clip", f"--workdir={workdir}")
    given = ("--on=launch/gke.py:v5e-256", "--topology=none")
    return cli.main(["launch", "gke", *given, *arguments, *train])


def test_a_dry_run_prints_the_manifest(capsys):
    assert run("--dry-run", "--on.topology=v5e:4x4") == 0
    resource = yaml.safe_load(capsys.readouterr().out)
    jsonschema.validate(resource, SCHEMA)
    assert resource["metadata"]["name"] == "emoji-clip"


def test_a_workdir_that_hosts_do_not_share_is_a_sentence(capsys):
    assert run("--dry-run", workdir="/home/me/run") == 2
    said = capsys.readouterr().err
    assert "the folder /home/me/run is on a disk that no other host sees" in said
    with pytest.raises(ConfigError):
        check_workdir("/bucketful/run", mount="/bucket", bucket="b")
    assert run("--dry-run", workdir="/bucket/../home/run") == 2
    assert run("--dry-run", "--on.mount=/", workdir="/run") == 2
    assert "--on.mount=/ has to be a folder" in capsys.readouterr().err


def test_wrong_settings_are_named(capsys):
    assert run("--dry-run", "--on.quee=x") == 2
    assert "--on.quee is not a known key; did you mean 'queue'?" in capsys.readouterr().err
    assert run("--dry-run", "--on.topology=v9:2x2") == 2
    assert "there is no 'v9'" in capsys.readouterr().err
    assert run("--dry-run", "--on.bucket=gs://b") == 2
    assert "has to be a name, without gs://" in capsys.readouterr().err
    assert run("--dry-run", "--on.grace_seconds=-1") == 2
    assert "--on.grace_seconds=-1 has to be at least 0" in capsys.readouterr().err


def test_a_missing_kubectl_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run() == 2
    assert "the command kubectl is not on this machine: install kubectl" in capsys.readouterr().err


def test_the_manifest_goes_to_kubectl_and_a_refusal_is_a_sentence(capsys, tool, tmp_path):
    tool("kubectl", f'#!/bin/sh\necho "$@" >{tmp_path}/given; cat >{tmp_path}/text; echo created\n')
    assert run() == 0
    assert (tmp_path / "given").read_text().split() == ["apply", "--namespace=default", "-f", "-"]
    jsonschema.validate(yaml.safe_load((tmp_path / "text").read_text()), SCHEMA)
    assert "kubectl delete jobset emoji-clip" in capsys.readouterr().err
    tool("kubectl", "#!/bin/sh\ncat >/dev/null\necho 'spec: field is immutable' >&2; exit 1\n")
    assert run() == 2
    assert "let it end and delete it (kubectl delete jobset" in capsys.readouterr().err
    words = 'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"'
    tool("kubectl", f"#!/bin/sh\ncat >/dev/null\necho 'error: {words}' >&2; exit 1\n")
    assert run() == 2
    assert "the cluster has no JobSet controller: install it" in capsys.readouterr().err


def test_what_has_to_be_given_is_named(capsys):
    train = ("--", "train", "--config=configs/emoji.py:clip", "--workdir=/bucket/run")
    assert cli.main(["launch", "gke", "--dry-run", "--on.image=i", *train]) == 2
    assert "--on.topology and --on.bucket missing: give them, or a file" in capsys.readouterr().err
    given = ("--on.image=i", "--on.bucket=b", "--on.topology=v5e:2x4")
    assert cli.main(["launch", "gke", "--dry-run", *given, *train]) == 0
