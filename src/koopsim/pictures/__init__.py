"""Pictures: reading them safely, sets of them, what they weigh as PNG and JPEG, and drawing ours."""

from koopsim.pictures.codecs import CodecSizes, codec_sizes, jpeg_within, psnr
from koopsim.pictures.read import Picture, read_picture, save_png
from koopsim.pictures.sets import PictureSet, picture_set

__all__ = [
    "CodecSizes", "Picture", "PictureSet", "codec_sizes", "jpeg_within", "picture_set", "psnr", "read_picture",
    "save_png",
]  # fmt: skip
