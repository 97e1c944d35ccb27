"""The Triton forms of the maps, one file each. None is imported before it is used; every one has a readable twin."""
