"""``contrastive`` with faults built in: what the environment variable FAULTS asks for happens at
the batch that it names, in the process that it names, once or always.

    FAULTS='{"ids": "FOLDER", "faults": [{"kind": "kill", "at": 5, "once": "FILE"}]}'
"""

import json
import os
import resource
import signal
import sys
import time

from contrastive import cli
from contrastive.data.pipeline import BatchLoader
from contrastive.training import checkpoint, loop

PLAN = json.loads(os.environ.get("FAULTS", "{}"))
PROCESS = int(os.environ.get("CONTRASTIVE_PROCESS", "0"))


def due(kind, at):
    """The fault of this kind that strikes now."""
    for fault in PLAN.get("faults", ()):
        if fault["kind"] != kind or fault.get("process", 0) != PROCESS:
            continue
        if fault["at"] not in (at, "always"):
            continue
        if "once" in fault:
            try:
                os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
        return fault
    return None


def strike_at_batch(number, batch):
    if due("kill", number):
        os.kill(os.getpid(), signal.SIGKILL)
    if due("abort", number):
        os.abort()
    if due("terminate", number):
        os.kill(os.getpid(), signal.SIGTERM)
    if fault := due("sleep", number):
        time.sleep(fault["seconds"])
    if fault := due("wait", number):
        while not os.path.exists(fault["for"]):
            time.sleep(0.01)
    if due("rows", number):
        batch = {name: rows[:-1] for name, rows in batch.items()}
    if due("length", number):
        batch = batch | {"text": batch["text"][:, :-1]}
    if fault := due("clock", number):
        real, jump = time.time, fault["seconds"]
        time.time = lambda: real() + jump
    fault = due("disk", number)
    if fault and not os.path.exists(fault["until"]):  # as if full: no file may grow beyond this
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], hard))
    return batch


def install():
    next_batch, save, to_device = BatchLoader.__next__, checkpoint.Checkpointer.save, loop.to_device

    def faulty_next(self):
        batch = next_batch(self)
        if "ids" in PLAN:
            with open(os.path.join(PLAN["ids"], f"{PROCESS}.jsonl"), "a") as file:
                file.write(json.dumps([self.step, batch["example"].tolist()]) + "\n")
        return strike_at_batch(self.step, batch)

    def faulty_save(self, step, *rest):
        save(self, step, *rest)
        if due("kill during save", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if due("terminate during save", step):
            os.kill(os.getpid(), signal.SIGTERM)

    count = iter(range(1, sys.maxsize))

    def faulty_to_device(batch, sharding):
        if due("nan", next(count)):
            batch = batch | {"image": batch["image"].astype("float32") * float("nan")}
        return to_device(batch, sharding)

    BatchLoader.__next__ = faulty_next
    checkpoint.Checkpointer.save = faulty_save
    loop.to_device = faulty_to_device


if __name__ == "__main__":
    install()
    sys.exit(cli.main())
