"""One exception tree. Every message says what was given, what is allowed and what to do about it.

The command line prints the message on one line and exits with 2; a library user catches `HdccfError`
for all of it or a branch for a part.
"""

import re
from importlib.util import find_spec


class HdccfError(Exception):
    """Anything that a user can cause and a user can mend.

    Examples
    --------
    >>> try:
    ...     hdccf.HDCCF(temperature=-1)
    ... except hdccf.HdccfError as error:
    ...     print(error)
    temperature=-1 is not possible: it should be greater than or equal to 0.0001
    """


class ConfigError(HdccfError):
    """A setting that is unknown, impossible, or at odds with another."""


class DataError(HdccfError):
    """Interactions that cannot be used as they are: too few, contradictory, or of the wrong kind."""


class SourceError(DataError):
    """A file, table or query that cannot be read; the message names the file, the row and the column."""


class DownloadError(HdccfError):
    """A data set that could not be fetched or did not match its checksum."""


class EvaluationError(HdccfError):
    """Scores or splits that would give a meaningless metric."""


class DiskFullError(HdccfError, OSError):
    """A file or folder for which there is no room; nothing of it was left behind."""

    def __str__(self) -> str:  # OSError would write errno and strerror only
        return str(self.args[0])


class RunError(HdccfError):
    """A run directory that is missing, damaged, of another format, or in the way."""


class TrainingError(HdccfError):
    """Training that cannot go on: a loss that is not a number, a step without positives."""


def needs_ray(what: str) -> None:
    """Refuses what only the extra `ray` can do, where that is not installed."""
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise ConfigError(f"{what} needs Ray; install it with: pip install 'hdccf[ray]'")


def one_line(text: object) -> str:
    """A message without line ends, fit for the inside of another; the type's name where it says nothing."""
    return " ".join(str(text).split()) or type(text).__name__


def without_secrets(uri: str) -> str:
    """A URI without its user info, and without the values of query parameters that may be secret.

    >>> without_secrets("postgresql://shop:p@ss@host/db?sslmode=require&password=x")
    'postgresql://***@host/db?sslmode=require&password=***'
    """
    # The parameters first: their values may hold an @, and user info any character.
    named = r"([?&][^=&#@]*(?:pass|pwd|secret|token|key|credential)[^=&#@]*=)[^&]*"
    public = re.sub(named, r"\1***", uri, flags=re.IGNORECASE)
    return re.sub(r"://.*@", "://***@", public)
