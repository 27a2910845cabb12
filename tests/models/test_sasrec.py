"""SASRec: the softmax of the next item in float64, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graphs import small_split
from hdccf.errors import ConfigError
from hdccf.models.sasrec import SASRec, build_sasrec
from hdccf.training.fit import fit


def test_the_loss_is_the_cross_entropy_of_each_next_item() -> None:
    """Over all items but the user's others, by products of vectors of length √d with the items'."""
    settings = SASRec(embedding_dim=8, attention_dropout=0.0, init_std=0.3, block_users=40)
    train = small_split().train
    model = build_sasrec(settings, train, torch.Generator().manual_seed(0))
    (batch,) = model.batches(torch.Generator().manual_seed(1))
    (objective,) = model.objectives(batch, torch.Generator().manual_seed(2))
    users, items = (vectors.embedding.detach().double().numpy() for vectors in model.block_vectors(batch))
    users = users[: len(batch.users)]
    np.testing.assert_allclose(np.linalg.norm(users, axis=1), 1.0, rtol=1e-5)
    losses = []
    positives = iter(range(len(batch.users)))
    for user in dict.fromkeys(batch.users.tolist()):
        history = train.items[train.users == user].tolist()
        for place in range(len(history) - 1):
            row, following = next(positives), history[place + 1]
            assert batch.users[row] == user
            logits = [np.sqrt(8) * float(users[row] @ item) for item in items]
            others = [np.exp(logits[item]) for item in range(len(items)) if item not in history]
            losses.append(-np.log(np.exp(logits[following]) / (np.exp(logits[following]) + sum(others))))
    assert next(positives, None) is None
    assert objective.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)


def test_without_times_there_is_no_order() -> None:
    split = small_split()
    timeless = replace(split, train=replace(split.train, times=None))
    with pytest.raises(ConfigError, match="the data has no times; give a time column"):
        fit(timeless, SASRec(epochs=1))


def test_heads_must_share_the_dimensions() -> None:
    with pytest.raises(ConfigError, match="attention_heads=3 cannot share 64 dimensions"):
        SASRec(attention_heads=3)
