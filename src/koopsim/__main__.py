"""`python -m koopsim` is `koopsim`."""

from koopsim.cli.leaving import run_and_leave

run_and_leave()
