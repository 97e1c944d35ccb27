"""`python -m koopsim` is `koopsim`."""

from koopsim.cli.leaving import command

command()
