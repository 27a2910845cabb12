"""MLflow as a logger beside TensorBoard, against its own local stores."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from graphs import small_split, tastes
from hdccf.config import FitOptions
from hdccf.errors import ConfigError
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.fit import fit, resume
from training import cut_off_after, quick


def logged(uri: str) -> list[Any]:
    """The runs of the experiment, with their client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client: Any = MlflowClient(tracking_uri=uri)
        return [
            (client, run)
            for run in client.search_runs([client.get_experiment_by_name("hdccf").experiment_id])
        ]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_mlflow_gets_settings_and_curves(
    store: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"sqlite:///{tmp_path}/ml.db" if store == "sqlite" else f"file://{tmp_path}/mlruns"
    options = FitOptions(mlflow=uri)
    model = fit(tastes(), quick(epochs=2), out=tmp_path / "run" if kept else None, options=options)
    ((client, run),) = logged(uri)
    assert run.info.status == "FINISHED"
    assert run.data.params["model"] == "hdccf"
    assert run.data.params["embedding_dim"] == "4"
    history = client.get_metric_history(run.info.run_id, "validation/sampled:ndcg_10")
    assert model.result is not None
    best = max(history, key=lambda metric: metric.value)
    assert (best.step, best.value) == (model.result["best_epoch"], model.result["best_value"])
    assert [metric.step for metric in history] == [1, 2]
    assert run.data.metrics["best_value"] == best.value
    if kept:
        lines = RunFolder.open(tmp_path / "run").metrics()
        assert run.data.metrics["loss"] == lines[-1]["loss"]
        assert not (tmp_path / "run" / "refit" / "mlflow.json").exists()


def test_a_resumed_training_goes_on_in_its_mlflow_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/ml.db"
    options = FitOptions(mlflow=uri, checkpoint_epochs=1)
    with cut_off_after(9, monkeypatch):
        fit(small_split(), quick(), out=tmp_path / "run", options=options)
    ((_, run),) = logged(uri)
    assert run.info.status == "FAILED"
    resume(tmp_path / "run")
    ((client, run),) = logged(uri)
    assert run.info.status == "FINISHED"
    assert {metric.step for metric in client.get_metric_history(run.info.run_id, "loss")} == {1, 2, 3}


def test_candidates_are_one_mlflow_run(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/ml.db"
    candidates = {kind: quick(kind, epochs=4) for kind in ("history", "block")}
    model = fit(small_split(), candidates, out=tmp_path / "run", options=FitOptions(mlflow=uri))
    ((client, run),) = logged(uri)
    assert run.data.params["user_vector"] == model.settings.model_dump()["user_vector"]
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3, 4]


def test_an_mlflow_that_cannot_be_used_is_one_line_and_one_that_is_lost_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"^MLflow at nonsense://x cannot be used .* sqlite:///mlflow.db$"):
        fit(small_split(), quick(), out=tmp_path / "run", options=FitOptions(mlflow="nonsense://x"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="has a password in it"):
        FitOptions(mlflow="http://me:secret@host")

    def lose(*_: Any, **__: Any) -> None:
        raise OSError("connection lost")

    monkeypatch.setattr(MlflowClient, "log_batch", lose)
    fit(small_split(), quick(), options=FitOptions(mlflow=f"sqlite:///{tmp_path}/ml.db"))
    assert "MLflow cannot be reached any more (connection lost); training goes on" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(
        ConfigError, match=r"^MLflow is not installed; install it with: pip install 'hdccf\[mlflow\]'$"
    ):
        fit(small_split(), quick(), options=FitOptions(mlflow=f"sqlite:///{tmp_path}/ml.db"))
