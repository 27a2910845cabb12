"""Where results lie: `results/` has a folder a study, and in it files named after the data set."""

TIME = "-time"


def part_name(dataset: str, time_aware: bool) -> str:
    """The name of a data set's time-blind or time-aware part, in file names and as a preset."""
    return f"{dataset}{TIME}" if time_aware else dataset
