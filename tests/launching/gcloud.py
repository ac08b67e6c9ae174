"""Stands in for gcloud: takes the commands and options that the reference of gcloud compute tpus
names, refuses others as gcloud does, keeps what was created, and does what a scenario says.

The folder in $GCLOUD_STAND_IN holds ``scenario.json``: ``states``, for each resource that is
created the states that describe reports one after another (the last one stays), and ``statuses``,
what the workers' runs report one after another; ``calls.jsonl`` is written.
"""

import json
import os
import pathlib
import sys

FOLDER = pathlib.Path(os.environ["GCLOUD_STAND_IN"])
_PLACE = {"zone", "project"}
# Of each command: options that it must be given, and further ones that it may be given
COMMANDS = {
    ("compute", "tpus", "queued-resources", "create"): (
        {"zone", "accelerator-type", "runtime-version"},
        {"node-id", "node-count", "node-prefix", "spot", "reserved", "service-account", "network",
         "project", "valid-until-duration", "labels", "metadata", "subnetwork"},
    ),
    ("compute", "tpus", "queued-resources", "describe"): ({"zone"}, {"format", "project"}),
    ("compute", "tpus", "queued-resources", "delete"): ({"zone"}, {"force", "quiet", "project"}),
    ("compute", "tpus", "tpu-vm", "ssh"): ({"zone"}, {"worker", "command", "project"}),
    ("alpha", "compute", "tpus", "queued-resources", "ssh"): (
        {"zone"}, {"worker", "node", "command", "project"},
    ),
}  # fmt: skip
_FLAGS = {"spot", "reserved", "force", "quiet"}  # these have no value


def fail(message):
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    sys.exit(1)


def parse(arguments):
    """The command, the name and the options, checked."""
    words = [a for a in arguments if not a.startswith("--")]
    command, names = tuple(words[:-1]), words[-1:]
    if command not in COMMANDS:
        fail(f"Invalid choice: {' '.join(words)!r}")
    required, further = COMMANDS[command]
    options = {}
    for argument in arguments:
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            if key not in required | further:
                fail(f"unrecognized arguments: {argument}")
            if bool(equals) == (key in _FLAGS):
                fail(f"argument --{key}: wrong number of values")
            options[key] = value
    if missing := required - options.keys():
        fail(f"argument --{' --'.join(sorted(missing))}: Must be specified.")
    return command, names[0], options


def check_create(options):
    several = {"node-count", "node-prefix"} & options.keys()
    if ("node-id" in options) == bool(several):
        fail("Exactly one of (--node-id | --node-count --node-prefix) must be specified.")
    if {"spot", "reserved"} <= options.keys():
        fail("argument --reserved: At most one of --reserved | --spot can be specified.")


def load(name, default):
    file = FOLDER / name
    return json.loads(file.read_text()) if file.exists() else default


def save(name, value):
    (FOLDER / name).write_text(json.dumps(value))


def main():
    command, name, options = parse(sys.argv[1:])
    with open(FOLDER / "calls.jsonl", "a") as file:
        file.write(json.dumps([" ".join(command), name, options]) + "\n")
    scenario, alive = load("scenario.json", {}), load("alive.json", {})
    action = command[-1]
    if action == "create":
        check_create(options)
        if scenario.get("refuse"):
            fail(scenario["refuse"])
        if name in alive:
            fail(f"ALREADY_EXISTS: {name} already exists")
        states = scenario["states"].pop(0)
        save("scenario.json", scenario)
        save("alive.json", {name: states})
        return
    if name not in alive:
        fail(f"NOT_FOUND: Resource '{name}' was not found")
    states = alive[name]
    if action == "delete":
        save("alive.json", {})
    elif action == "describe":
        print(json.dumps({"name": name, "state": {"state": states[0]}}))
        if len(states) > 1:
            save("alive.json", {name: states[1:]})
    elif states[0] != "ACTIVE":
        fail("the TPU is not in state READY")
    elif "run.status 2>" in options["command"]:
        status = scenario["statuses"].pop(0)
        save("scenario.json", scenario)
        print(f"SSH: Attempting to connect to worker 0...\nstatus {status}\nstatus {status}")


main()
