"""Data that scikit-learn's package holds, found without the second and more that importing scikit-learn takes."""

from importlib.util import find_spec
from pathlib import Path

from koopsim.errors import KoopsimError


def packaged(inside: str) -> Path:
    """The file `inside` of scikit-learn's folder, such as datasets/data/digits.csv.gz."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise KoopsimError("scikit-learn is not installed: pip install scikit-learn.")
    file = Path(found.origin).parent / inside
    if not file.is_file():
        raise KoopsimError(f"scikit-learn's package has no {inside}: {file} is not there; install scikit-learn again.")
    return file
