"""Starts Ray Train workers, waits for them, and copies the result into the run's folder."""

import io
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import ray
from pyarrow import fs
from ray import train
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig, TorchTrainer

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.data.split import Split
from hdccf.distributed import worker
from hdccf.distributed.store import Store, file_system_of, write_store
from hdccf.distributed.worker import BEST, METRICS, STATE, fetched, newest
from hdccf.errors import ConfigError, RunError, TrainingError, one_line
from hdccf.files import locked, write_json
from hdccf.models import entry_named, name_of
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.recommend.run_folder import Cluster, FitOptions, RunFolder, removed_if_it_fails, resume_command
from hdccf.rng import generator_for
from hdccf.training.calibrate import calibrate_run, parse_metric
from hdccf.training.fit import result_of
from hdccf.training.state import TrainingState
from hdccf.training.telemetry import Board, MLflow, TensorBoard, Writer
from hdccf.training.warm_start import start_from

DATA_PARALLEL = ("bpr", "hdccf", "neumf", "pmf", "ssm", "svdpp")
"""The models that train data-parallel."""

_GENERATORS = ("irgan", "sd-gar")
_START = "ray-start"
"""The folder of the weights of a warm start."""


def fit(
    split: Split,
    settings: Settings,
    *,
    seed: int,
    out: str | Path,
    options: FitOptions,
    progress: bool = False,
    about: dict[str, Any] | None = None,
    init_from: str | Path | None = None,
) -> Recommender:
    """`hdccf.fit` on the workers of `options.cluster`."""
    cluster = _cluster_of(options)
    check(settings)
    threads = options.threads or (1 if cluster.address else max(1, (os.cpu_count() or 1) // cluster.workers))
    options = options.changed(threads=threads)
    about = about or {}
    model = None
    if init_from is not None:
        model = entry_named(name_of(settings)).build(
            settings, split.train, generator_for(seed, "initial values")
        )
        about = {
            **about,
            "init_from": start_from(model, name_of(settings), split.train, init_from, refit=False),
        }
    with locked(Path(out), RunError):
        run = RunFolder.create(Path(out), {name_of(settings): settings}, split, seed, options, about)
        place, weighting = storage_of(run, cluster), None
        if isinstance(settings, TrainingSettings):
            protocol, _, drawn = parse_metric(settings.validation_metric)
            weighting = drawn if protocol == "sampled" else None
        write_store(split, f"{place}/store", weighting=weighting)
        if model is not None:
            checkpoint.save(run.path / _START / "start.safetensors", model.state_dict(), {})
        with removed_if_it_fails(run.path):
            return _train(run, cluster, progress)


def resume(run: RunFolder, *, progress: bool = False) -> Recommender:
    """Resumes from the newest complete checkpoint, with as many workers as the run was started with."""
    if run.result.exists():
        return load_run(run.path)
    cluster = _cluster_of(run.options)
    place = f"{storage_of(run, cluster)}/store"
    with locked(run.path, RunError):
        try:
            Store(place)
        except RunError:
            write_store(run.split(), place)  # killed before it was whole
        return _train(run, cluster, progress)


def check(settings: Settings) -> None:
    """Refuses what workers cannot train together."""
    name = name_of(settings)
    if name not in DATA_PARALLEL:
        raise ConfigError(
            f"{name} trains in one process; leave out --workers, or choose one of {list(DATA_PARALLEL)}"
        )
    sampler = getattr(settings, "sampler", None)
    if sampler in _GENERATORS:
        raise ConfigError(
            f"sampler={sampler!r} learns beside the model, in one process; leave out --workers, or choose "
            "another sampler"
        )
    if getattr(settings, "nearest", 0):
        raise ConfigError(
            "nearest needs the whole graph, of which a worker has a part; leave out --workers, or set it to 0"
        )


def _train(run: RunFolder, cluster: Cluster, progress: bool) -> Recommender:
    store = Store(f"{storage_of(run, cluster)}/store")
    degrees = store.user_degrees
    for shard in store.shards("user", cluster.workers):
        if not np.any(degrees[shard.first : shard.last]):
            raise ConfigError(
                f"{cluster.workers} workers are too many for {len(degrees)} users: one would have no "
                "training pairs; give --workers fewer"
            )
    found = _call(run, cluster, progress)
    if "error" in found:
        raise TrainingError(found["error"])
    result = _copy_results(run, cluster, found, bool(store.meta["validation"]))
    if run.options.calibrate:
        fitted = load_run(run.path)
        calibrate_run(fitted.model, fitted.split, run, progress=progress)
    write_json(run.result, result)
    return load_run(run.path)


def _call(run: RunFolder, cluster: Cluster, progress: bool) -> dict[str, Any]:
    """One call of Ray Train, from the newest checkpoint to the end."""
    place, gpu = storage_of(run, cluster), run.options.device != "cpu"
    warm, start = run.path / _START, newest(place)
    if start is not None:
        with fetched(start) as kept:
            run.load_tensors(kept / STATE)  # refuses one of other settings before workers start
    configuration = {
        "run": run.fingerprint,
        "model": run.model,
        "settings": resolved_settings(run),
        "seed": run.seed,
        "options": {**run.options.model_dump(), "cluster": None},
        "threads": run.options.threads or 1,
        "store": f"{place}/store",
        "start": start,
        "warm": str(warm) if warm.exists() else None,
        "progress": progress,
    }
    # A new folder for each call: Ray would otherwise trust an incomplete one of a killed call.
    system, folder = file_system_of(place)
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    earlier = [info for info in found if info.base_name.startswith("attempt-")]
    with connected(cluster, progress=progress):
        trainer = TorchTrainer(
            worker.run_worker,
            train_loop_config=configuration,
            torch_config=TorchConfig(
                # Queries of the graph stay on the CPU, with gloo.
                backend="cpu:gloo,cuda:nccl" if gpu else "gloo",
                timeout_s=max(1, int(cluster.timeout)),
            ),
            scaling_config=train.ScalingConfig(num_workers=cluster.workers, use_gpu=gpu),
            run_config=train.RunConfig(
                name=f"attempt-{1 + len(earlier)}",
                storage_path=place,
                failure_config=train.FailureConfig(max_failures=cluster.retries),
                checkpoint_config=train.CheckpointConfig(num_to_keep=2),
                # Its warnings concern Ray itself; failures of the training are reported by the callback.
                logging_config=train.LoggingConfig(log_level="ERROR"),
                callbacks=[Reporter(cluster.workers, cluster.timeout)],
            ),
        )
        try:
            with _own_interrupts():
                result = trainer.fit()
        except (KeyboardInterrupt, SystemExit, RayActorError) as cause:
            # On Ctrl-C Ray ends its controller and then this process, or raises the controller's death.
            raise RunError(f"interrupted; go on with: {resume_command(run.path)}") from cause
        except train.TrainingFailedError as cause:
            raise TrainingError(
                f"the workers failed more than {cluster.retries} times, at last with "
                f"{one_line(cause)[:300]}; go on with: {resume_command(run.path)}"
            ) from cause
    return dict(result.return_value or {"error": "the workers gave nothing back; look at Ray's logs"})


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restores the handler of Ctrl-C, which Ray Train replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def resolved_settings(run: RunFolder) -> dict[str, Any]:
    """The run's settings with `auto` resolved on all users, as a worker sees only some."""
    return run.settings.resolved(run.split().train).model_dump(mode="json")


def _copy_results(run: RunFolder, cluster: Cluster, found: dict[str, Any], validated: bool) -> dict[str, Any]:
    """Takes weights, state and metrics into the run's folder; returns what result.json will say."""
    last = newest(storage_of(run, cluster))
    if last is None:
        raise RunError(f"no whole checkpoint is in {storage_of(run, cluster)}; train again")
    with fetched(last) as folder:
        shutil.copyfile(folder / METRICS, run.path / METRICS)
        run.save_tensors(run.best, *run.load_tensors(folder / BEST))
        tensors, facts = run.load_tensors(folder / STATE)
    run.save_tensors(run.checkpoint, tensors, facts)
    result = result_of(TrainingState.from_json(facts["state"]), validated)
    write_json(run.path / "workers.json", found["workers"])
    if found["profile"] is not None:
        write_json(run.profile, found["profile"])
    writers: list[Writer] = [TensorBoard(run.path)] if run.options.tensorboard else []
    if run.options.mlflow is not None:
        tracker = MLflow(run.options.mlflow)
        tracker.begin(run, run.settings)
        tracker.close(failed=False)
    with Board(*writers) as board:
        for record in run.metrics():
            board.add(record)
    return result


@contextmanager
def connected(cluster: Cluster, *, progress: bool) -> Iterator[None]:
    """Connects to the cluster, or starts and stops a local one; an open connection is reused."""
    if ray.is_initialized():
        yield
        return
    # A worker that does not answer Ray for so long counts as dead.
    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(2 * cluster.timeout))
    shared: dict[str, Any] = {"log_to_driver": progress, "logging_level": "error"}
    try:
        if cluster.address is None:
            # By default Ray's workers have a low priority.
            os.environ.setdefault("RAY_worker_niceness", "0")
            # Ray needs one CPU more than workers, whatever the machine has; without an address it would join
            # any cluster that runs here.
            ray.init(address="local", num_cpus=cluster.workers + 1, include_dashboard=False, **shared)
        else:
            ray.init(address=cluster.address, **shared)
    except (ConnectionError, ValueError) as cause:
        raise ConfigError(
            f"no Ray cluster answers at {cluster.address!r} ({one_line(cause)[:300]}); "
            "start one with: ray start --head"
        ) from cause
    with redirect_stderr(LogFilter(sys.stderr)), redirect_stdout(LogFilter(sys.stdout)):
        try:
            yield
        finally:
            ray.shutdown()


def _cluster_of(options: FitOptions) -> Cluster:
    if options.cluster is None:
        raise ConfigError("no cluster was given; set options.cluster, or use hdccf.fit")
    return options.cluster


def storage_of(run: RunFolder, cluster: Cluster) -> str:
    """Where the run's store and checkpoints are; the fingerprint tells runs of the same name apart."""
    if cluster.storage is None:
        return str(run.path.resolve() / "ray")
    return f"{cluster.storage.rstrip('/')}/{run.path.name}-{run.config['split']['fingerprint']}"


_OF_A_PROCESS = re.compile(r"^(?:\x1b\[\d+m)?\([^)]*pid=[^)]*\)(?:\x1b\[0m)? ?(.*)$", re.DOTALL)
_OWN = ("epoch ", "note: ", "hdccf: ")


class LogFilter(io.TextIOBase):
    """Passes the training's log lines, without Ray's prefix, and drops those about Ray itself.

    Ray marks the lines that its processes write; its own messages are in its log files.
    """

    def __init__(self, real: TextIO) -> None:
        self.real = real
        self._line_is_done = False

    def write(self, text: str) -> int:
        if text == "\n" and self._line_is_done:
            self._line_is_done = False  # print gives the end of a line by itself
            return 1
        found = _OF_A_PROCESS.match(text)
        if found is None:
            self.real.write(text)
        elif found[1].startswith(_OWN):
            self.real.write(found[1].rstrip("\n") + "\n")
        self._line_is_done = found is not None and not text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self.real.flush()


class Reporter(train.UserCallback):  # type: ignore[misc]
    """Reports failed workers; runs in Ray's controller, whose output reaches the driver's standard error."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers, self.timeout = workers, timeout

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        sys.stderr.write(f"hdccf: {describe(worker_exceptions, self.workers, self.timeout)}\n")
        sys.stderr.flush()


def describe(failures: dict[int, Exception], workers: int, timeout: float) -> str:
    """Which worker died, hangs or failed, from the exceptions of all."""
    texts = {rank: one_line(failure) for rank, failure in failures.items()}
    silent = sorted(set(range(workers)) - set(failures))
    dead = [rank for rank, text in texts.items() if "died" in text or "ActorDiedError" in text]
    if dead:
        what = f"worker {dead[0]} of {workers} died"
    elif silent and any("imed out" in text for text in texts.values()):
        named = ", ".join(map(str, silent))
        what = f"worker {named} of {workers} hangs: it has not answered the others for {timeout:g} s"
    else:
        rank = min(texts)
        what = f"worker {rank} of {workers} failed: {texts[rank][:300]}"
    return f"{what}; going on from the last checkpoint"
