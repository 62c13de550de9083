"""On import: this folder behind all others on sys.path, because `engines.py` and `warmup.py` here bear names of packages that they measure."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [*(place for place in sys.path if Path(place).resolve() != HERE), str(HERE)]
