"""Files and folders that may be anyone's: what is read is checked before it is used, what is written is written whole.

folders    which folder is ours, who holds it, which of its files we may replace
writing    a file is replaced whole or not at all
json       JSON and lines of JSON          tensors   safetensors
arrays     .npy and .npz                   picture   PNG, JPEG and the like
opened     what all of these begin with: a plain file of a bounded size, never a pipe or a device
memory     what may be allocated for what a file or a configuration asks for
"""
