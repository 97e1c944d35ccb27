"""koopsim export: a trained model to take along: ONNX, torch.export, AOTInductor, or a folder for a model hub."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from koopsim.cli import parse
from koopsim.cli.written import require_place
from koopsim.errors import KoopsimError


@dataclass(frozen=True)
class Arguments:
    """Write a trained SIM as ONNX, torch.export or AOTInductor, for any batch size, and check what the file answers; or
    any model as a folder in the layout of Hugging Face's hub: weights, configuration, model card."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, a file of model.save, or a model of the zoo, such as zoo:mnist/sim-two."""
    format: Literal["onnx", "pt2", "aoti", "hub"] = "onnx"
    """onnx for onnxruntime and others, pt2 for torch.export.load, aoti for machine code by AOTInductor, hub for a
    folder with model card to upload."""
    device: str = "cpu"
    """What --format aoti compiles for: cpu or cuda."""
    out: Path | None = None
    """The file (hub: the folder) to write; by default the model's name in this folder."""
    fuse: bool = True
    """Multiply the linear maps out and fold the normalisations away first."""
    check: bool = True
    """Run the file on inputs of another size and compare with the model."""
    picture: int = 0
    """Of a run of image regression: which of its networks, counted from 0."""
    overwrite: bool = False
    """Replace --out where it exists."""
    json: bool = False
    """Print what was written as JSON on standard output."""


def main(argv: list[str]) -> int:
    arguments = parse(Arguments, argv, "export")
    from koopsim import zoo
    from koopsim.files import folders

    name, config = zoo.config_of(arguments.what)
    usual = folders.plain_name(name.replace("/", "-").replace(":", "-").lstrip("."), "The run")
    if arguments.format == "hub":
        return _hub(arguments, name, config, arguments.out or Path(usual))
    ending = ".aoti.pt2" if arguments.format == "aoti" else f".{arguments.format}"
    file = arguments.out or Path(usual + ending)
    if not file.name.endswith(ending) or (arguments.format == "pt2" and file.name.endswith(".aoti.pt2")):
        raise KoopsimError(f"--out is {file}; a file of --format {arguments.format} ends in {ending}.")
    require_place(file, arguments.overwrite)
    from koopsim.export import example, export_model

    example(config)  # a model that does not export says so before it is loaded
    model = _model(arguments)
    done = export_model(model, config, file, arguments.format, arguments.fuse, arguments.check, arguments.device)
    if arguments.json:
        print(json.dumps(asdict(done) | {"name": name, "file": str(done.file)}, indent=2))
        return 0
    kind = "fused" if done.fused else "not fused"
    print(f"{file}: {name}, {kind}, input {' x '.join(done.shape)}, {done.bytes / 1024:,.0f} KiB")
    if done.difference is not None:
        print(
            f"  {done.runtime}: largest difference {done.difference:.2g}, where the largest output is {done.scale:.2g}"
            f"; {done.milliseconds:.3g} ms for one input, the model itself {done.model_milliseconds:.3g} ms"
        )
    elif arguments.check:
        print("koopsim: not checked, onnxruntime is not installed: pip install 'koopsim[export]'.", file=sys.stderr)
    return 0


def _model(arguments: Arguments):
    from torch import nn

    from koopsim import zoo

    model = zoo.load(arguments.what)
    return one_of(model, arguments.picture) if isinstance(model, nn.ModuleList) else model


def one_of(models: Any, picture: int) -> Any:
    """The network that --picture says."""
    if not 0 <= picture < len(models):
        raise KoopsimError(f"--picture is {picture}; this run has {len(models)}, counted from 0.")
    return models[picture]


def _hub(arguments: Arguments, name: str, config, folder: Path) -> int:
    from koopsim.hub import FILES, about_of, write_folder

    model = _model(arguments)
    write_folder(model, config, name, folder, about_of(arguments.what), arguments.overwrite)
    if arguments.json:
        print(json.dumps({"name": name, "folder": str(folder), "files": list(FILES)}, indent=2))
    else:
        print(f"{folder}: {name} as {', '.join(FILES)}; upload it with: hf upload NAME {folder}")
    return 0
