"""A real Slurm of one node on loopback, with its own key, ports and folder, from ``with`` on."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")


def install() -> str:
    """Make sure that Slurm is there, installing Debian's packages if that can be done. Returns why it is not, or ""."""
    if _absent() and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "slurm-wlm", "munge"]
        for command in (["apt-get", "update", "-qq"], packages):
            subprocess.run(command, env=environment, capture_output=True, timeout=600, check=False)
    absent = _absent()
    return f"no Slurm here, and it could not be installed: {', '.join(absent)} not found" if absent else ""


def _absent() -> list[str]:
    return [name for name in PROGRAMS if not _which(name)]


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def cluster(folder: Path, cpus: int = 2) -> Iterator[Mapping[str, str]]:
    """The environment in which Slurm's commands speak to this cluster. Its folder must have a short path: sockets lie in it."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(
        "\n".join(
            (
                "ClusterName=kvgate",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={_free_port()}",
                f"SlurmdPort={_free_port()}",
                f"SlurmUser={user}",
                f"SlurmdUser={user}",
                "AuthType=auth/munge",
                f"AuthInfo=socket={folder}/munge.socket,cred_expire=10",  # so long waits a job that was put back,
                "CredType=cred/munge",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU",
                "JobAcctGatherType=jobacct_gather/none",
                "AccountingStorageType=accounting_storage/none",
                "MpiDefault=none",
                "ReturnToService=2",
                "SlurmdParameters=config_overrides",
                "SchedulerParameters=sched_min_interval=100000,batch_sched_delay=1",
                "MinJobAge=600",
                "KillWait=5",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd.pid",
                f"SlurmctldLogFile={folder}/slurmctld.log",
                f"SlurmdLogFile={folder}/slurmd.log",
                f"NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN",
                f"PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP",
                "",
            )
        )
    )
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    munge = [f"--{name}={folder}/munge.{end}" for name, end in MUNGE.items()]
    with ExitStack() as stays:
        for program, *words in (
            ("munged", "--foreground", "--force", *munge),
            ("slurmctld", "-D", "-f", str(conf)),
            ("slurmd", "-D", "-f", str(conf), "-N", host),
        ):
            stays.enter_context(_daemon([str(_which(program)), *words], folder / f"{program}.out", environment))
            if program == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environment), folder)
        try:
            yield environment
        finally:
            subprocess.run(["scancel", "-u", user], env=environment, capture_output=True, timeout=60, check=False)
            _wait(lambda: not _said(["squeue", "-h"], environment).strip(), folder)


MUNGE = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


@contextmanager
def _daemon(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _said(command: list[str], environment: Mapping[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


def _wait(ready: Iterator[bool] | object, folder: Path) -> None:
    until = time.monotonic() + 90
    while not ready():  # type: ignore[operator]
        if time.monotonic() > until:
            logs = {file.name: file.read_text(errors="replace")[-1500:] for file in folder.glob("*.log")}
            raise TimeoutError(f"Slurm did not come up: {logs}")
        time.sleep(0.2)
