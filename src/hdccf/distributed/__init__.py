"""The same training on several processes and machines: Ray starts the workers, torch.distributed joins them.

store      the training pairs as Parquet files sorted by user and by item, of which a worker reads its stretch
spread     those pairs as a graph that asks the other workers for what this one does not have
group      sums and gradients across workers
judging    each worker judges its own users
store     checkpoints through Ray's storage path
worker     what each worker runs: the one loop of `hdccf.training.loop`
driver     starts the workers and waits for them; what `hdccf train --workers` calls
answering  `recommend --all` through Ray Data

Only `driver`, `reporting`, `store` and `answering` know Ray. Of the rest of hdccf the command line alone
imports this room, and that only when workers are asked for.
"""
