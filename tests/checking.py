"""The type checker that tests run torch rooms with; `conftest.py` says which rooms."""

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for, as for mypy.
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
