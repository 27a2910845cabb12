"""From a file of events to recommendations, in Python: read, split, train, evaluate, ask.

python examples/train_and_ask.py events.csv runs/films [--epochs 30]
"""

import argparse
from pathlib import Path

import hdccf


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on events and ask the model.")
    parser.add_argument("events", type=Path, help="a CSV file, as make_events.py writes it")
    parser.add_argument("run", type=Path, help="where to keep the run")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()

    data = hdccf.read(options.events, user="who", item="film", time="watched_at", title="title")
    split = hdccf.leave_one_out(hdccf.k_core(data, 5, 5))
    print(split)

    settings = hdccf.HDCCF(user_vector="history", epochs=options.epochs)
    model = hdccf.fit(split, settings, seed=0, out=options.run)
    print(hdccf.evaluate(model, split))

    user = split.train.user_ids[0]
    print(model.recommend([user], k=5))
    # Somebody new: nothing is trained again, three films are enough.
    print(model.recommend_for_items([split.train.item_ids.head(3)], k=5))
    print(model.explain(user, k=1).parts)


if __name__ == "__main__":
    main()
