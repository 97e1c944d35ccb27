"""The Triton forms of what a monDEQ does. None is imported before it is used; every one has a readable twin."""
