"""TPU VMs through gcloud's queued resources: created, set up, run, watched, created again after
preemption, and deleted.

Commands are pure functions of settings. What is going on is asked of the cloud and of the machines
each time, never remembered here, so the same command may be given again at any time.
"""

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Sequence

from contrastive.errors import ConfigError, UserError
from contrastive.launching.gke import dns_name
from contrastive.launching.job import Job
from contrastive.launching.record import VARIABLE
from contrastive.launching.settings import check_at_least
from contrastive.launching.tools import run_tool
from contrastive.launching.topology import Machine, parse_machine
from contrastive.processes import LOST
from contrastive.training.supervisor import STOPPED, USER_ERROR

Command = list[str]
Say = Callable[[str], None]
_GONE = ("SUSPENDING", "SUSPENDED", "FAILED", "DELETING")  # of a queued resource: not coming back


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuMachine:
    """What is asked of Cloud TPU."""

    topology: str  # v5e:16x16, or v5e:16x16*2 (two slices)
    zone: str
    repository: str  # whence every worker takes the code, at the commit that is launched
    bucket: str  # Cloud Storage; --workdir lies in it, below mount
    mount: str = "/mnt/bucket"
    project: str | None = None  # None: that of gcloud's configuration
    name: str | None = None  # of the queued resource; None: the recipe's name
    spot: bool = False
    reserved: bool = False
    runtime: str | None = None  # software of the VMs; None: what goes with the chip
    service_account: str | None = None  # with access to the bucket
    network: str | None = None
    setup: tuple[str, ...] = ()  # further lines of bash on every worker, before the first run
    poll_seconds: float = 60.0
    failures: int = 3  # how often a run that failed by itself is started again
    delete: bool = True  # when the run has ended well

    def __post_init__(self) -> None:
        if not self.machine.tpu:
            raise ConfigError(f"--on.topology={self.topology} has no TPUs.")
        if self.spot and self.reserved:
            raise ConfigError("--on.spot and --on.reserved exclude each other.")
        check_at_least(self, failures=0, poll_seconds=0.1)

    @property
    def machine(self) -> Machine:
        return parse_machine(self.topology)


class Tpu:
    """The commands for one queued resource."""

    def __init__(self, settings: TpuMachine, name: str) -> None:
        self.settings, self.name = settings, dns_name(settings.name or name)

    def _where(self) -> Command:
        project = [f"--project={self.settings.project}"] if self.settings.project else []
        return [f"--zone={self.settings.zone}", *project]

    def _queued(self, action: str, *options: str) -> Command:
        words = ["gcloud", "compute", "tpus", "queued-resources", action, self.name]
        return [*words, *self._where(), *options]

    def create(self) -> Command:
        """Asks for the machines."""
        settings, machine = self.settings, self.settings.machine
        several = [f"--node-count={machine.slices}", f"--node-prefix={self.name}"]
        options = [
            *(several if machine.slices > 1 else [f"--node-id={self.name}"]),
            f"--accelerator-type={machine.accelerator_type}",
            f"--runtime-version={settings.runtime or machine.kind.runtime}",
        ]
        options += ["--spot"] * settings.spot + ["--reserved"] * settings.reserved
        given = {"service-account": settings.service_account, "network": settings.network}
        options += [f"--{key}={value}" for key, value in given.items() if value]
        return self._queued("create", *options)

    def describe(self) -> Command:
        """What has become of the request."""
        return self._queued("describe", "--format=json")

    def delete(self) -> Command:
        """Gives the machines back, and the request."""
        return self._queued("delete", "--force", "--quiet")

    def ssh(self, line: str, worker: str = "all") -> Command:
        """Runs a line of bash on the workers of all slices."""
        options = [f"--worker={worker}", f"--command={line}"]
        if self.settings.machine.slices == 1:
            words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", self.name]
            return [*words, *self._where(), *options]
        words = ["gcloud", "alpha", "compute", "tpus", "queued-resources", "ssh", self.name]
        return [*words, *self._where(), "--node=all", *options]

    def set_up(self, commit: str) -> Command:
        """Code, environment and bucket on every worker; may be done again."""
        settings, q = self.settings, shlex.quote
        lines = [
            "set -eu",
            f"test -d contrastive || git clone --quiet {q(settings.repository)} contrastive",
            f"cd contrastive && git fetch --quiet --all && git checkout --quiet {q(commit)}",
            "test -x .venv/bin/python || python3 -m venv .venv",
            ".venv/bin/python -m pip install --quiet -c constraints.txt -e '.[tpu,remote]'",
            f"sudo mkdir -p {q(settings.mount)} && sudo chown $USER {q(settings.mount)}",
            f"mountpoint -q {q(settings.mount)} || gcsfuse --implicit-dirs {q(settings.bucket)} "
            f"{q(settings.mount)}",
            *settings.setup,
        ]
        return self.ssh("\n".join(lines))

    def start(self, job: Job) -> Command:
        """Starts the run on every worker, detached; a run that is there already stays."""
        command = f".venv/bin/contrastive {shlex.join(job.arguments)} --coordinator=auto"
        inner = (
            f"echo $$ >~/run.pid; export {VARIABLE}={shlex.quote(job.record_text)}; "
            f"{command} >>~/run.log 2>&1; echo $? >~/run.status"
        )
        lines = [
            'if kill -0 "$(cat ~/run.pid 2>/dev/null)" 2>/dev/null; then exit 0; fi',
            "rm -f ~/run.status ~/run.pid; cd contrastive",
            f"setsid nohup bash -c {shlex.quote(inner)} >/dev/null 2>&1 </dev/null &",
        ]
        return self.ssh("\n".join(lines))

    def statuses(self) -> Command:
        """One line a worker: ``status running`` or the exit status of its run; :data:`LOST` where
        there is neither a run nor its word, as after a reboot."""
        alive = 'test ! -e ~/run.pid || kill -0 "$(cat ~/run.pid)" 2>/dev/null'
        ended = f"cat ~/run.status 2>/dev/null || echo {LOST}"
        return self.ssh(f"echo status $(if {alive}; then echo running; else {ended}; fi)")

    def newest(self) -> Command:
        """What the first worker said last."""
        return self.ssh("tail -n 3 ~/run.log 2>/dev/null || true", worker="0")


def check_launch(job: Job, *, force: bool) -> str:
    """The commit that the workers are to take.

    Raises:
      UserError: It is not known, or the code here is not what it holds.
    """
    git = job.record["git"]
    if git["commit"] is None:
        raise UserError(
            "the workers take the code from --on.repository at the commit that is here, and there "
            "is no commit here; start from a clone."
        )
    if git["dirty"] and not force:
        listed = ", ".join(git["changed"][:5])
        raise UserError(
            f"the code here differs from commit {git['commit'][:12]} ({listed}), and the workers "
            "take the commit; commit and push, or start it all the same with --force."
        )
    return git["commit"]


def describe_all(tpu: Tpu, job: Job, commit: str) -> list[Command]:
    """All commands of a run that nothing happens to, in their order."""
    steps = [tpu.create(), tpu.describe(), tpu.set_up(commit), tpu.start(job), tpu.statuses()]
    steps.append(tpu.newest())
    return [*steps, tpu.delete()] if tpu.settings.delete else steps


class Runner:
    """Carries a run to its end on machines that may be taken away.

    Args:
      tpu: The commands.
      job: The run.
      commit: Of the code.
      say: Receives sentences.
      sleep: Waits; replaced in tests.
    """

    def __init__(
        self, tpu: Tpu, job: Job, commit: str, *, say: Say, sleep: Callable[[float], None]
    ) -> None:
        self._tpu, self._job, self._commit = tpu, job, commit
        self._say, self._sleep = say, sleep
        self._said = ""

    def run(self) -> int:
        """Returns the run's exit status.

        Raises:
          UserError: The cloud refuses.
        """
        failures = 0
        while True:
            self._until_active()
            self._say(f"{self._tpu.name} is active; setting up all workers.")
            if self._alive(self._tpu.set_up(self._commit)) is None:
                continue
            if self._alive(self._tpu.start(self._job)) is None:
                continue
            status = self._watch()
            if status is None:
                self._say(f"{self._tpu.name} was taken away; asking for another.")
                continue
            if status == 0:
                return self._end()
            failures += status not in STOPPED
            if status == USER_ERROR or failures > self._tpu.settings.failures:
                self._say(
                    f"the run ended with status {status}; the machines are kept to look at: "
                    f"contrastive launch tpu … --delete gives them back. {self._said}".strip()
                )
                return status
            self._say(f"the run ended with status {status}; started again.")

    def _end(self) -> int:
        if self._tpu.settings.delete:
            run_tool(self._tpu.delete())
            self._say(f"{self._tpu.name} is deleted.")
        return 0

    def _state(self) -> str | None:
        """Of the queued resource; None: there is none."""
        try:
            found = json.loads(run_tool(self._tpu.describe()))
        except UserError as error:
            if "NOT_FOUND" in str(error) or "not found" in str(error).lower():
                return None
            raise
        except ValueError as error:
            raise UserError(
                f"gcloud describes {self._tpu.name} in a form that is not known ({error}); update "
                "the Google Cloud CLI."
            ) from error
        return found.get("state", {}).get("state", "")

    def _until_active(self) -> None:
        before = None
        while True:
            state = self._state()
            if state == "ACTIVE":
                return
            if state in _GONE:
                run_tool(self._tpu.delete())
                state = None
            if state is None:
                self._say(shlex.join(self._tpu.create()))
                run_tool(self._tpu.create())
            elif state != before:
                self._say(f"{self._tpu.name}: {state}")
            before = state
            self._sleep(self._tpu.settings.poll_seconds)

    def _alive(self, command: Sequence[str]) -> str | None:
        """What a command on the workers printed; None: they have been taken away meanwhile.

        Raises:
          UserError: It failed although the workers are there.
        """
        try:
            return run_tool(command, seconds=1800.0)
        except UserError:
            if self._state() == "ACTIVE":
                raise
            return None

    def _watch(self) -> int | None:
        """The largest exit status of the workers; None: they have been taken away."""
        missed = 0
        while True:
            self._sleep(self._tpu.settings.poll_seconds)
            if self._state() != "ACTIVE":
                return None
            try:
                said = run_tool(self._tpu.statuses(), seconds=300.0)
            except UserError:
                missed += 1  # a connection that fails now and then is no failure
                if missed >= 5:
                    raise
                continue
            missed = 0
            words = [line.split()[-1] for line in said.splitlines() if line.startswith("status ")]
            self._show()
            ended = [int(word) for word in words if word.isdecimal()]
            if words and len(ended) == len(words):
                return next((s for s in ended if s == USER_ERROR), max(ended))

    def _show(self) -> None:
        try:
            newest = run_tool(self._tpu.newest(), seconds=300.0).strip()
        except UserError:
            return
        if newest and newest != self._said:
            self._said = newest
            self._say(newest)


def run_tpu(tpu: Tpu, job: Job, commit: str, *, say: Say) -> int:
    """:class:`Runner` with the clock of this machine."""
    return Runner(tpu, job, commit, say=say, sleep=time.sleep).run()
