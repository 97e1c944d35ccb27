"""After the trials: what is trained again, with which seeds, and what the result holds. Nothing is trained here."""

import json
from dataclasses import replace

import pytest
from small_search import CPU, result_of_run, tiny_search

from koopsim.errors import KoopsimError
from koopsim.runs import RunDirectory
from koopsim.searching import outcome
from koopsim.searching.directory import SearchDirectory
from koopsim.searching.outcome import Ended, chosen, conclude, final_run
from koopsim.searching.trial import draw_trials
from koopsim.training import Session


@pytest.fixture
def ended(tmp_path):
    """(search, its folder, its trials: the second is the best)"""
    search = tiny_search(trials=3)
    trials = draw_trials(search.base, search.space, search.seed)
    for trial, loss in zip(trials, (2.0, 1.0, 3.0), strict=True):
        trial.curve = [{"t": t, "seconds": t, "train_loss": 1.0, "loss": loss} for t in (1, 2, 3, 4)]
        trial.end("finished", "all 4 epochs")
    return search, SearchDirectory.create(tmp_path / "s", search), trials


@pytest.fixture
def trainings(monkeypatch):
    """What would have been trained; the n-th comes to a test loss of n."""
    found = []

    def train_run(run, folder, name, session, begun, task):
        found.append((folder.path.name, name, run.seed, begun, task))
        result = result_of_run(run, test={"loss": float(len(found))})
        folder.result_file.write_text(json.dumps(result))
        return result

    monkeypatch.setattr(outcome, "train_run", train_run)
    monkeypatch.setattr("koopsim.searching.plots.save_plots", lambda trials, space, folder: [folder.name])
    return found


def test_the_best_is_trained_again_with_seeds_far_apart(ended, trainings):
    search, directory, trials = ended
    result = conclude(search, directory, Ended(trials, 7.5), Session(CPU), "the task", 3)
    seed = trials[1].run.seed
    assert [(name, at) for name, _, at, _, _ in trainings] == [
        ("best", seed), ("best-2", seed + 100_003), ("best-3", seed + 200_006)]  # fmt: skip
    assert {(name, begun) for _, name, _, begun, _ in trainings} == {("copy/sim-two", False)}
    assert result["test"] == {"loss": 1.0}
    assert result["test_over_seeds"] == {"metric": "loss", "mean": 2.0, "std": 1.0, "values": [1.0, 2.0, 3.0]}
    assert (result["best"]["trial"], result["seconds"], result["backend"]) == (1, 7.5, "local")
    assert "confirmed" not in result
    assert result["pictures"] == ["s"]  # of its folder
    assert directory.read_result()["best"] == json.loads(json.dumps(result["best"]))


def test_what_was_trained_is_used_again_and_what_was_begun_goes_on(ended, trainings, monkeypatch):
    search, directory, trials = ended
    monkeypatch.setattr(outcome, "find_spec", lambda name: None)  # a machine without Matplotlib
    first = conclude(search, directory, Ended(trials), Session(CPU))
    assert first["pictures"] == []
    assert first["test_over_seeds"] == {"metric": "loss", "mean": 1.0, "std": 0.0, "values": [1.0]}
    assert conclude(search, directory, Ended(trials), Session(CPU))["test"] == {"loss": 1.0}
    assert len(trainings) == 1
    RunDirectory(directory.best_folder(0)).result_file.unlink()
    conclude(search, directory, Ended(trials), Session(CPU))
    assert [begun for *_, begun, _ in trainings] == [False, True]
    trials[1].run = replace(trials[1].run, seed=77)  # another run: it begins anew
    conclude(search, directory, Ended(trials), Session(CPU))
    assert trainings[-1][2:4] == (77, False)


@pytest.mark.parametrize("test", [{"test": {}}, {"test": {"accuracy": 1.0}}, {}])
def test_what_was_trained_again_and_edited_is_named(ended, trainings, test):
    search, directory, trials = ended
    conclude(search, directory, Ended(trials), Session(CPU))
    file = RunDirectory(directory.best_folder(0)).result_file
    whole = json.loads(file.read_text())
    del whole["test"]
    file.write_text(json.dumps(whole | test))
    with pytest.raises(KoopsimError, match=r"best/result\.json is not .*'test(\.loss)?' is missing"):
        conclude(search, directory, Ended(trials), Session(CPU))


def test_no_retraining_no_test_figures(ended, trainings):
    search, directory, trials = ended
    result = conclude(search, directory, Ended(trials), Session(CPU), seeds=0)
    assert trainings == []
    assert not {"test", "test_over_seeds"} & result.keys()


def test_the_task_is_shared_where_it_stays_the_same(ended, trainings):
    search, directory, trials = ended
    conclude(search, directory, Ended(trials), Session(CPU), "the task")
    same = final_run(trials[1].run).task == search.base.task
    assert trainings[0][4] == ("the task" if same else None)
    other = replace(search, base=replace(search.base, task=replace(search.base.task, train=49)))
    directory.best_folder(0).joinpath("result.json").unlink()
    conclude(other, directory, Ended(trials), Session(CPU), "the task")
    assert trainings[1][4] is None


def test_a_confirmed_configuration_is_chosen_before_the_best_figure(ended, trainings):
    search, directory, trials = ended
    rows = [{"trial": 2}, {"trial": 0}]
    assert chosen(search, trials, rows) is trials[2]
    assert chosen(search, trials) is trials[1]
    result = conclude(search, directory, Ended(trials, 1.0, rows), Session(CPU), seeds=1)
    assert (result["best"]["trial"], result["confirmed"]) == (2, rows)
