"""A trained model as a folder that a model hub takes: weights, configuration, and a card to read.

    FOLDER/model.safetensors    what `model.save` writes: koopsim.load(FOLDER / "model.safetensors") reads it back
    FOLDER/config.json          model_type, architecture and the whole configuration, as the hub looks for them
    FOLDER/README.md            the model card: YAML for the hub's filters, then Markdown for people

The layout is Hugging Face's: upload the folder as it is (`hf upload NAME FOLDER`). `card_text` alone is a card of the
zoo as Markdown.
"""

from pathlib import Path
from typing import Any

from torch import nn

from koopsim import __version__
from koopsim.config import ModelConfig, to_dict
from koopsim.errors import KoopsimError
from koopsim.files import folders
from koopsim.nn import count_parameters
from koopsim.nn.saved import save_model
from koopsim.runs import write_atomically, write_json

WHAT = {
    "SIMConfig": "a stable invariant model, which answers in one feedforward pass where an equilibrium model iterates.",
    "DEQConfig": "a deep equilibrium model: one layer, run until it stands still.",
    "MonDEQConfig": "a monotone equilibrium network: its equilibrium exists and is unique.",
}
FILES = ("model.safetensors", "config.json", "README.md")
TAGS = {"accuracy": "image-classification"}  # of what a test figure judges, the hub's name of the task

CARD = """---
library_name: koopsim
license: {licence}
tags: [{tags}]
{pipeline}---

# {name}

{kind} of [koopsim](https://github.com/koopsim/koopsim) {version}: {what}
{parameters:,} parameters; only numbers are in the file, loading it executes no code.

## Use

```python
import koopsim

model = koopsim.load("model.safetensors")
```

{predict}
## Figures

{figures}
{about}"""


def card_text(name: str, config: ModelConfig, parameters: int, about: dict[str, Any]) -> str:
    """The card of a model as Markdown; `about` is a card of the zoo, or what is known of a run."""
    test = about.get("test") or about.get("valid") or {}
    rows = "".join(f"| {key} | {value:.6g} |\n" for key, value in test.items())
    split = "test" if about.get("test") else "validation"
    figures = f"| {split} | |\n|---|---:|\n{rows}" if rows else "None recorded.\n"
    task = next((hub for key, hub in TAGS.items() if key in test), None)
    classes = ", ".join((about.get("takes") or {}).get("classes", ()))
    said = {
        "Trained on": about.get("trained_on"),
        "Data licence": about.get("data_licence"),
        "Seed": about.get("seed"),
        "Machine": about.get("gpu"),
        "Commit": about.get("commit"),
        "Repeat": about.get("repeat") and f"`{about['repeat']}`",
        "SHA-256 of the recorded checkpoint": about.get("sha256") and f"`{about['sha256']}`",
    }
    lines = "".join(f"- {key}: {value}\n" for key, value in said.items() if value is not None)
    return CARD.format(
        name=name, version=__version__, parameters=parameters, figures=figures,
        licence="apache-2.0", kind=type(config).__name__.removesuffix("Config"),
        what=WHAT.get(type(config).__name__, "a model of koopsim or of a plugin."),
        tags=", ".join(["koopsim", "pytorch", *([task] if task else [])]),
        pipeline=f"pipeline_tag: {task}\n" if task else "",
        predict=f'`model.predict(["picture.png"])` says which it is: {classes}.\n' if classes else "",
        about=f"\n## Where it is from\n\n{lines}" if lines else "",
    )  # fmt: skip


def write_folder(
    model: nn.Module, config: ModelConfig, name: str, folder: Path, about: dict[str, Any], overwrite: bool = False
) -> Path:
    """Write the three files into a folder of their own; what koopsim did not write there is left alone."""
    with folders.held(folder):
        folders.claim(folder, "hub", FILES, overwrite)
        takes = getattr(model, "takes", None)
        save_model(folder / FILES[0], model, config, takes, name)
        architecture = type(config).__name__.removesuffix("Config")
        whole = {"model_type": "koopsim", "architectures": [architecture], "koopsim_version": __version__}
        write_json(folder / FILES[1], whole | {"name": name, "model": to_dict(config)})
        text = card_text(name, config, count_parameters(model), about | {"takes": takes and takes.as_dict()})
        write_atomically(folder / FILES[2], text.encode())
    return folder


def about_of(what: str) -> dict[str, Any]:
    """What is known of a model of the zoo or of a finished run; nothing of a file."""
    from koopsim import zoo
    from koopsim.runs import RunDirectory

    if what.startswith(zoo.PREFIX):
        return zoo.card(what)
    if not Path(what).is_dir():
        return {}
    directory = RunDirectory(what)
    if not directory.result_file.exists():
        raise KoopsimError(f"{what} is unfinished: koopsim train --resume {what}.")
    result, (_, run) = directory.read_result(), directory.read_config()
    said = {key: result[key] for key in ("test", "valid") if key in result}
    where = result["environment"]
    return said | {"seed": run.seed, "commit": where.get("commit"), "gpu": where.get("gpu") or where.get("cpu")}
