"""From anyone's events to batches: sources, named data sets, preparation, sampling."""
