"""Trackers hear of every epoch, while it trains, and what they show is what metrics.jsonl records."""

import logging
from importlib.util import find_spec

import pytest

import koopsim
from koopsim.cli import main
from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory
from koopsim.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases, flat, together

TINY = ["--scale", "smoke", "--recipe.epochs", "2", "--device", "cpu"]


class Kept(Tracker):
    """A tracker of the test's own."""

    package, extra, title = "json", "none", "Kept"

    def __init__(self):
        super().__init__()
        self.lines, self.closed = [], False

    def start(self, step):
        return self.lines

    def note(self, figures, step):
        self.lines.append((step, figures))

    def finish(self):
        self.closed = True


class Broken(Kept):
    title = "Broken"

    def note(self, figures, step):
        raise OSError("the server is gone")


def epoch(step):
    return {"event": "epoch", "epoch": step, "step": step, "train_loss": 1.0 / step, "seconds": 0.1}


def test_a_tracker_hears_epochs_alone_and_is_closed():
    with Kept() as kept:
        kept({"event": "progress", "step": 1, "steps": 9})
        kept(epoch(4))
    assert kept.lines == [(4, {"train_loss": 0.25, "seconds": 0.1})]
    assert kept.closed


def test_one_that_fails_is_left_out_and_the_others_go_on(caplog):
    kept = Kept()
    listen = together(Broken(), kept)
    with caplog.at_level(logging.WARNING):
        listen(epoch(1))
        listen(epoch(2))
    assert len(kept.lines) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Broken failed and is left out from here on: the server is gone"
    ]


def test_what_is_no_tracker_may_stop_the_training():
    def stop(event):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        together(stop)(epoch(1))


@pytest.mark.parametrize(
    ("tracker", "extra"), [(TensorBoard, "tensorboard"), (WeightsAndBiases, "wandb"), (MLflow, "mlflow")]
)
def test_a_missing_package_is_said_at_once(tracker, extra, monkeypatch):
    monkeypatch.setattr("koopsim.tracking.find_spec", lambda name: None)
    with pytest.raises(KoopsimError, match=rf"pip install 'koopsim\[{extra}\]'"):
        tracker("x")


def test_what_cannot_begin_is_one_sentence():
    class Shut(Kept):
        title = "Shut"

        def start(self, step):
            raise ValueError("no\nkey")

    with pytest.raises(KoopsimError, match="Shut cannot be used: no key"), Shut():
        pass


def test_a_configuration_as_dotted_names():
    assert flat({"recipe": {"epochs": 3}, "seed": 0}) == {"recipe.epochs": 3, "seed": 0}


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_tensorboard_shows_what_the_run_records(tmp_path, caplog, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # pyright: ignore

    monkeypatch.setenv("KOOPSIM_LOG", "info")
    with caplog.at_level(logging.INFO, "koopsim"):
        assert main(["train", "digits/sim-single", *TINY, "--tensorboard", "--out", str(tmp_path / "run")]) == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    recorded = RunDirectory(tmp_path / "run").read_metrics()
    shown = [(scalar.step, scalar.value) for scalar in events.Scalars("train_loss")]
    assert shown == [(line["step"], pytest.approx(line["train_loss"], rel=1e-6)) for line in recorded]
    logged = [record.getMessage() for record in caplog.records if record.name == "koopsim.training"]
    assert [line.split(":")[1].split()[0] for line in logged] == ["begins", "epoch", "epoch", "finished"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
@pytest.mark.filterwarnings("ignore")  # mlflow's own
def test_mlflow_keeps_the_epochs(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow  # pyright: ignore

    assert main(["train", "digits/sim-single", *TINY, "--mlflow", "study", "--out", str(tmp_path / "run")]) == 0
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert run.data.params["recipe.epochs"] == "2"
    assert len(client.get_metric_history(run.info.run_id, "train_loss")) == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")  # wandb's own
def test_wandb_hears_of_it_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WeightsAndBiases("study", mode="offline") as tracker:
        koopsim.train("digits/sim-single", tmp_path / "run", scale="smoke", device="cpu", progress=tracker)
        summary = dict(tracker.open.summary)
    assert summary["train_loss"] == pytest.approx(RunDirectory(tmp_path / "run").read_metrics()[-1]["train_loss"])
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
