"""Builds on a Dask cluster of this machine: what comes back, and what a lost cluster leaves."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

import cloudpickle

from tilewheel_build.report import read as read_report

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = Path(__file__).parent
STAGE = "stage-hidden=16384-cuda-sm_90a"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Cluster:
    """A scheduler and workers, each a process of ours."""

    place: Path
    variables: dict[str, str]
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def dask(self, *arguments: str) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name("dask"))
        with (self.place / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [program, *arguments, "--host", "127.0.0.1", "--no-dashboard"],
                env=self.variables,
                cwd=self.place,
                stdout=log,
                stderr=log,
            )

    @property
    def address(self) -> str:
        address: str = json.loads((self.place / "scheduler.json").read_text())["address"]
        return address

    def start(self, num_workers: int) -> None:
        file = self.place / "scheduler.json"
        self.scheduler = self.dask("scheduler", "--port", "0", "--scheduler-file", str(file))
        # It exists before its content does, which ends with a brace.
        wait_for(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        for _ in range(num_workers):
            self.start_worker()

    def start_worker(self) -> None:
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.place))
        self.workers.append(self.dask("worker", self.address, *options))

    def stop(self) -> None:
        processes = [*self.workers, *([self.scheduler] if self.scheduler else [])]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(timeout=30)


@contextmanager
def running(place: Path, num_workers: int, environment: dict[str, str]) -> Iterator[Cluster]:
    place.mkdir()
    cluster = Cluster(place=place, variables=environment)
    try:
        cluster.start(num_workers)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """Return the environment of scheduler and workers, which are to build as the driver does."""
    root = HERE.parents[1]
    paths = [str(root / "runtime"), str(root / "build")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        # Without a second and third chance, as with many workers that a culprit has killed.
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]
) -> Iterator[Cluster]:
    """Return a cluster of two workers, which tests leave as it is."""
    place = tmp_path_factory.mktemp("cluster") / "dask"
    with running(place, 2, variables) as started:
        yield started


@pytest.fixture
def mortal(tmp_path: Path, variables: dict[str, str]) -> Iterator[Cluster]:
    """Return a cluster of two workers that the test may kill."""
    with running(tmp_path / "dask", 2, variables) as started:
        yield started


@contextmanager
def client_of(cluster: Cluster, num_workers: int) -> Iterator[Any]:
    from distributed import Client

    client = Client(cluster.address, timeout=30, set_as_default=False)
    try:
        if num_workers:
            client.wait_for_workers(num_workers, timeout=60)
        yield client
    finally:
        client.close(timeout=2)


@pytest.fixture
def elsewhere(built: Any, tmp_path: Path) -> Any:
    """Return the small checkout in another directory, with an operator that cannot be built."""
    shutil.copytree(built.root, tmp_path / "tree")
    shutil.copytree(HERE / "broken", tmp_path / "tree", dirs_exist_ok=True)
    return type(built)(root=tmp_path / "tree", out=tmp_path / "out")


def test_cluster_builds_what_this_machine_would_and_tells_what_failed(
    built: Any, elsewhere: Any, cluster: Cluster
) -> None:
    broken = "broken-mode=device_code-cuda-sm_90a"
    chosen = ("--only", "stage*", "--only", broken)
    done = elsewhere.run("build", "--dask", cluster.address, *chosen)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "1 artifacts (0 from the cache), 1 failed" in done.stdout
    assert elsewhere.published()[f"sm_90a/{STAGE}.so"] == built.published()[f"sm_90a/{STAGE}.so"]
    # The work directory of the worker is gone; what was in it is here.
    work = elsewhere.out / "work" / broken
    assert 'error: identifier "no_such_function" is undefined' in done.stderr
    assert done.stderr.endswith(f"kept: {work}\n")
    assert "no_such_function" in (work / "kernel.cu").read_text()
    assert elsewhere.run("verify").returncode == 0
    assert done.stderr.startswith("cuda: 0 of 2 from the cache, 2 to do\n")
    report = read_report(elsewhere.out / "report.json")
    (run,), (row,), (failed,) = report.runs, report.artifacts, report.failures
    assert (run.executor, run.jobs, row.source) == ("dask", None, "built")
    assert str(row.worker).startswith("tcp://127.0.0.1:")
    assert str(failed.worker).startswith("tcp://127.0.0.1:")
    assert 0 < (row.link_s or 0) < (row.end_s or 0) - (row.start_s or 0)
    assert (row.cpu_s or 0) > 0
    # No cluster is needed for what it has built.
    done = elsewhere.run("build", "--only", "stage*", PATH="")
    assert "1 artifacts (1 from the cache), 0 failed" in done.stdout


def test_worker_links_device_code_that_the_cache_has_for_another_processor(
    copy: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    zig = str(copy.out / "cache" / "zig")
    # Without g++ on PATH nvcc cannot run: only the launcher is compiled.
    bare = {**variables, "PATH": "", "ZIG_GLOBAL_CACHE_DIR": zig}
    with running(tmp_path / "dask", 1, bare) as cluster:
        chosen = ("--machine", OTHER, "--only", STAGE)
        done = copy.run("build", "--dask", cluster.address, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 artifacts (0 from the cache), 0 failed" in done.stdout
    assert copy.run("verify", "--machine", OTHER).returncode == 0


def test_scheduler_that_goes_away_ends_with_8_and_publishes_nothing(
    copy: Any, mortal: Cluster
) -> None:
    before = copy.published()
    kernel = copy.kernel("stage_cuda.py")
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    process = copy.start("build", "--dask", mortal.address)
    wait_for(lambda: list(mortal.place.glob("**/unit-*/work")) or process.poll() is not None)
    assert mortal.scheduler is not None
    mortal.scheduler.kill()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 8, printed
    assert (
        f"--dask: the scheduler at {mortal.address} went away: 1 of 1 units are left, "
        "none was published\n"
        "hint: start the cluster and build again; what was finished is in the cache\n"
    ) in printed
    assert "Traceback" not in printed
    assert copy.published() == before
    assert copy.leftovers() == []


# Workers cannot import this file, so what they run are inner functions, which travel whole.


def mark_and_wait() -> Callable[[tuple[Path, int]], int]:
    """Return what gives a task's number; task 0 waits, at its first start, until it is killed."""

    def run(task: tuple[Path, int]) -> int:
        place, number = task
        try:
            (place / f"{number}.started").touch(exist_ok=False)
        except FileExistsError:
            return number  # the worker that had it before was killed
        (place / f"{number}.pid").write_text(str(os.getpid()))
        while number == 0:
            time.sleep(0.05)
        return number

    return run


def test_units_of_a_worker_that_is_killed_go_to_another(mortal: Cluster, tmp_path: Path) -> None:
    from tilewheel_build.dask_runner import run_tasks

    pid = tmp_path / "0.pid"
    tasks = [(tmp_path, number) for number in range(6)]
    with client_of(mortal, 2) as client:
        finished: dict[int, object] = {}
        for number, outcome in run_tasks(mark_and_wait(), tasks, client=client, address="here"):
            finished[number] = outcome
            if len(finished) == 3:
                wait_for(lambda: pid.exists() and pid.read_text())
                os.kill(int(pid.read_text()), signal.SIGKILL)
        assert finished == {number: number for number in range(6)}
        assert len(client.scheduler_info()["workers"]) == 1


def kill_at_0() -> Callable[[int], int]:
    """Return what gives a task's number; task 0 kills its worker, each time."""

    def run(number: int) -> int:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return run


def test_only_the_unit_that_kills_its_workers_fails(mortal: Cluster) -> None:
    from tilewheel_build.dask_runner import run_tasks
    from tilewheel_build.errors import WorkerError

    for _ in range(3):
        mortal.start_worker()
    with client_of(mortal, 5) as client:
        found = dict(run_tasks(kill_at_0(), range(8), client=client, address="here"))
    error = found.pop(0)
    assert found == {number: number for number in range(1, 8)}
    assert isinstance(error, WorkerError)
    assert str(error).startswith("the workers that had it died, one by one: ")


def test_cluster_without_workers_is_given_up(tmp_path: Path, variables: dict[str, str]) -> None:
    from tilewheel_build.dask_runner import run_tasks
    from tilewheel_build.errors import ClusterError

    with running(tmp_path / "dask", 0, variables) as empty, client_of(empty, 0) as client:
        with pytest.raises(ClusterError) as raised:
            list(run_tasks(str, [1, 2], client=client, address="here", no_workers_s=1))
        assert str(raised.value).startswith(
            "--dask: the cluster at here has had no worker for 1 s: 2 of 2 units are left, "
            "none was published\nhint: "
        )


def test_address_without_a_port_is_refused_at_once(built: Any) -> None:
    started = time.monotonic()
    done = built.run("build", "--dask", "scheduler")
    assert time.monotonic() - started < 20
    first, hint = done.stderr.splitlines()
    assert first.startswith("--dask: no scheduler answers at scheduler: missing port number")
    assert hint.startswith("hint: ")
    assert done.returncode == 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense://x"])
def test_address_where_no_scheduler_answers_ends_with_2(
    copy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    from tilewheel_build.cli import main

    monkeypatch.setattr("tilewheel_build.dask_runner.CONNECT_S", 1.0)
    assert main([*copy.command("build")[3:], "--dask", address]) == 2
    printed = capsys.readouterr().err
    assert f"--dask: no scheduler answers at {address}: " in printed
    assert "hint: start one with `dask scheduler`, and `dask worker ADDRESS` on each" in printed


def test_missing_dask_ends_with_4_and_a_hint(copy: Any) -> None:
    script = (
        "import sys\n"
        "sys.modules['distributed'] = None\n"
        "from tilewheel_build.cli import main\n"
        f"sys.exit(main({copy.command('build', '--dask', 'x')[3:]!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("--dask: needs distributed, which is not installed: ")
    assert done.stderr.endswith("hint: python -m pip install -r requirements-dev.txt\n")


def test_sources_only_are_not_lowered_on_a_cluster(copy: Any) -> None:
    done = copy.run("build", "--source-only", "--dask", "x")
    assert (done.returncode, done.stderr) == (
        2,
        "--dask: is given, must not be with --source-only\n",
    )
