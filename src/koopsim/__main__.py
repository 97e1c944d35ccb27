"""`python -m koopsim` is `koopsim`."""

import sys

from koopsim.cli import main

sys.exit(main())
