"""Data-parallel training and inference: Ray starts the workers, torch.distributed connects them.

store             the training pairs as Parquet files sorted by user and by item, read by shard
sharding          sums, gathers and gradients across processes, and the sharded training graph
worker            the training loop of `hdccf.training.loop` in each worker, its validation and checkpoints
driver            starts and awaits the workers: `hdccf train --workers`
inference         `hdccf recommend --all --workers` and `hdccf evaluate --workers`

Only the command line imports this package, and only when workers are requested.
"""
