"""The Kodak Lossless True Color Image Suite: 24 photographs of 768 x 512 pixels, by name, fetched and checked.

    kodak      all 24                                 kodak16    kodim01 to 16: the photographs of our Table 3
    kodak8     kodim17 to 24: in no table, for choosing settings and ranges on

A picture gives its centre square of 512 x 512, not resampled (pictures/sets.py). Files are known by the sha256 of the
PNGs as r0k.us has served them since 1999; the mirrors hold the same bytes. Kodak released them for unrestricted use.
"""

from collections.abc import Sequence
from pathlib import Path

from koopsim.datasets.cache import DownloadListener, data_folder, only_one, silence
from koopsim.datasets.download import DownloadFailed, Patience, checksum_of, download
from koopsim.errors import KoopsimError

NAME, SIZE = "kodak", 823_112  # the largest file's bytes: what a download may come to
MIRRORS = (
    "https://r0k.us/graphics/kodak/kodak/kodim{:02d}.png",
    "http://r0k.us/graphics/kodak/kodak/kodim{:02d}.png",
    "https://raw.githubusercontent.com/MohamedBakrAli/Kodak-Lossless-True-Color-Image-Suite/"
    "dd2e1105fe8d9afe1120cd7e4c0e5e41f509a81b/PhotoCD_PCD0992/{:02d}.png",
)
KODAK_SETS = {"kodak": range(1, 25), "kodak16": range(1, 17), "kodak8": range(17, 25)}
SHA256 = (
    "a56e27cbf5f843c048b6af1d6e090760e9c92fadba88b7dee0205918a37523bd",
    "4f4b74a79237e311d72cad958237b5f7088d8bce1c82305ebefe1a70e3022dfd",
    "e25ca1ff2f0c0cb5fdfd5f9b0a0bb21ac4c3de3c84a67f35b09a85d3306249db",
    "e3b946107c5d3441c022f678d0c3caf1e224d81b1604ba840a4f88e562de61aa",
    "10349e963c5c813d327852f82c1795fa4148d69fedffc4c589bee458e3ac3d53",
    "363510303b715d4cbc384e1ce227e466b613a09e1b71ae985882bf8e7fbd9b18",
    "b77d3f006f42414bb242222e0482e750c0fb9e5ee8d4bed2f6f11c5605fe54a4",
    "ba23983c76b4832ee0e8af0592664756841a16779acd69f792e268fb6d13d6e7",
    "6a4361c2fc194feb4edaa9f9a4a0620fb9943e460ac7fdf037fb0f6dd6607a7d",
    "9dfb70f5867c29ff9ed6313683f19b3d867849e40fbc0c4c54a4a89df341cf23",
    "7936814b58b5387fce2e4e2488b4ec830dadd95fa9520f358ddb30990b50f2b6",
    "d78c37c2f04f23761ed2367dd77e2db584ddd4c3950833fecf89f199a8126980",
    "bc34a3ce58dea09dce1704c997171602de90cb34d0c8503a988b77f473d39b08",
    "55a94550ff18f3246c4074fd32b77b0c74447c26b6ad274d564d999c0450ba6e",
    "7538cbb80cb9103606c48b806eae57d56c885c7f90b9b3be70a41160f9cbb683",
    "a89c7268ccd4718ba424a99fc4643c572cf692ca6eae887185ceb4e9f11d2e54",
    "37afcc89fbdcb76d9518e04b2fc011027e2f4cd14b3b2f83cefd721641a47c5b",
    "1a9258c365988961d87a0598725b609139c303ad48a5aad6c503c3b1a87849aa",
    "b7450b264b1b0a411390d8931b112c27905a992520fc90569dc4b920aa32bbdc",
    "3b46c71e3b92a563820ba32936be8330c586c41f938efd94be938386aae4328a",
    "ac958597c82073f6bb65129c68f72b651db5b9efd82e11547d07350214bc268b",
    "1cee58eb1f2d9c7ebb254d208a03c783ce6cf2c4d8c2cf45e235dd23b4ce1b29",
    "e3111a2fd4da24af15d6459ef9eacfe54106b38e27b4a21821b75c3f5d2d5baf",
    "1071c68372cc5a01435c2c225a5cf7d4bb803846ec08bb6b3d6721b156d7cb96",
)


def kodak_files(name: str = NAME, root: Path | None = None) -> dict[str, Path]:
    """The files of a set by the pictures' names, each checked; nothing is downloaded."""
    folder, found = data_folder(root) / NAME, {}
    for number in KODAK_SETS[name]:
        file = folder / _file(number)
        if not file.is_file():
            raise KoopsimError(f"{file} is not there: fetch it with 'koopsim data get {NAME}'.")
        if checksum_of(file, SHA256[number - 1]) != SHA256[number - 1]:
            raise KoopsimError(f"{file} is not the published picture; remove it and run 'koopsim data get {NAME}'.")
        found[file.stem] = file
    return found


def missing_pictures(root: Path | None = None) -> list[int]:
    """Numbers of the pictures that are not there."""
    return [number for number in KODAK_SETS[NAME] if not (data_folder(root) / NAME / _file(number)).is_file()]


def fetch_kodak(
    root: Path | None = None,
    listen: DownloadListener = silence,
    patience: Patience | None = None,
    mirrors: Sequence[str] = MIRRORS,
) -> tuple[Path, str]:
    """Bring what is missing, check all of it; the folder, and whether anything was downloaded."""
    folder, how = data_folder(root) / NAME, "already there"
    if missing_pictures(root):
        with only_one(folder, listen):
            for number in missing_pictures(root):
                file, how = folder / _file(number), "downloaded"
                urls = [mirror.format(number) for mirror in mirrors]
                try:
                    download(urls, file, SHA256[number - 1], SIZE, listen, patience)
                except DownloadFailed as failed:
                    raise KoopsimError(
                        f"{failed} Try again later (what arrived is kept), or put the 24 PNGs into {folder} by hand."
                    ) from failed
    kodak_files(NAME, root)
    return folder, how


def _file(number: int) -> str:
    return f"kodim{number:02d}.png"
