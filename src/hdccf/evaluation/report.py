"""`Evaluation`: the numbers, how they came about, and how they are read, saved and opened again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hdccf.errors import EvaluationError
from hdccf.files import atomic_directory, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "hdccf-evaluation"
FORMAT_VERSION = 1

_WORDS = {
    "users_without_held_out": "users have no held-out item and are not asked about",
    "users_without_training": "of the users asked about have no training interaction",
    "held_out_without_training": "held-out items have no training interaction",
    "users_unknown_to_model": "users are unknown to the model: a random order is expected of it",
    "held_out_unknown_to_model": "held-out items are unknown to the model: ranked after all known ones",
    "sampled_users_with_fewer_negatives": "users have fewer untouched items than negatives were "
    "asked for: all are used",
    "sampled_users_without_negatives": "users have no untouched item: left out of sampled ranking",
    "full_users_without_negatives": "users have no other candidate: left out of full ranking",
    "sampled_users_with_fewer_candidates_than_k": "users have fewer candidates than the largest K in "
    "sampled ranking",
    "full_users_with_fewer_candidates_than_k": "users have fewer candidates than the largest K in "
    "full ranking",
}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What `evaluate` found. `print` it, or take the numbers: `values["full"]["ndcg@10"]`."""

    values: dict[str, dict[str, float]]
    """Protocol → metric → mean over users."""
    per_user: pl.DataFrame
    """A row for each user: own id, training interactions, held-out items, and "protocol/metric" columns."""
    groups: dict[str, dict[str, dict[str, Any]]]
    """"users" or "items" → group → its size, its range of training interactions, and its values."""
    facts: dict[str, int]
    """Counts that a reader of the numbers should know."""
    settings: dict[str, Any]
    """What was asked for, and the fingerprint of the split."""

    def to_json(self) -> str:
        """`{"sampled": {"ndcg@10": …}, "full": {…}}`."""
        return json.dumps(self.values, indent=2, allow_nan=False)

    def remarks(self) -> list[str]:
        """A sentence for each fact that is not zero."""
        return [f"{self.facts[fact]:,} {words}" for fact, words in _WORDS.items() if self.facts.get(fact)]

    def to_markdown(self) -> str:
        """The overall table, the tables by group, and the remarks."""
        tables = [self.overall_table(), *(self.group_table(kind) for kind in ("users", "items"))]
        parts = [self._title(), *(_markdown(head, rows) for head, rows in tables)]
        if self.remarks():
            parts.append("\n".join(f"- {remark}" for remark in self.remarks()))
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        first = {protocol: next(iter(values.items())) for protocol, values in self.values.items()}
        shown = ", ".join(f"{protocol} {name} {value:.4f}" for protocol, (name, value) in first.items())
        return f"Evaluation({self.facts['users']:,} users, {shown}, …)"

    def __str__(self) -> str:
        return self.to_markdown()

    def __rich__(self) -> "RenderableType":
        from rich.console import Group

        tables = [_rich_table(*self.overall_table())]
        tables += [_rich_table(*self.group_table(kind)) for kind in ("users", "items")]
        return Group(self._title(), *tables, *self.remarks())

    def _title(self) -> str:
        return (
            f"{self.settings['part']}: {self.facts['users']:,} users, {self.facts['held_out']:,} "
            "held-out items, "
            f"{self.settings['negatives']} {self.settings['weighting']} negatives where sampled"
        )

    def overall_table(self) -> tuple[list[str], list[list[str]]]:
        """Metrics down, protocol and K across."""
        ks = self.settings["ks"]
        head = ["metric", *(f"{protocol} @{k}" for protocol in self.values for k in ks)]
        metrics = dict.fromkeys(name.partition("@")[0] for values in self.values.values() for name in values)
        rows = []
        for metric in metrics:
            cells = []
            for values in self.values.values():
                for k in ks:
                    # AUC has no K: it is said once.
                    value = values.get(f"{metric}@{k}", values.get(metric) if k == ks[0] else None)
                    cells.append(_number(value))
            rows.append([metric, *cells])
        return head, rows

    def group_table(self, kind: str) -> tuple[list[str], list[list[str]]]:
        """HR, NDCG and, for full ranking, coverage of each group at the smallest K."""
        k = self.settings["ks"][0]
        wanted = [
            (protocol, f"{metric}@{k}")
            for protocol in self.values
            for metric in ("hr", "ndcg", "coverage")
            if f"{metric}@{k}" in self.values[protocol]
        ]
        head = [kind, "training pairs", "number", *(f"{protocol} {name}" for protocol, name in wanted)]
        rows = []
        for name, group in self.groups[kind].items():
            least, most = group["training_interactions"]
            cells = [_number(group["values"].get(protocol, {}).get(metric)) for protocol, metric in wanted]
            rows.append([name, f"{least}–{most}", f"{group['size']:,}", *cells])
        return head, rows

    # -- on disk ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one folder: `evaluation.json` and `per_user.parquet`, all or nothing."""
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            self.per_user.write_parquet(folder / "per_user.parquet")
            meta = {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "values": self.values,
                "groups": self.groups,
                "facts": self.facts,
                "settings": self.settings,
            }
            write_json(folder / "evaluation.json", meta)

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Opens a folder that `save` wrote."""
        folder = Path(path)
        try:
            meta = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            per_user = pl.read_parquet(folder / "per_user.parquet")
        except FileNotFoundError as cause:
            raise EvaluationError(f"{folder} holds no evaluation; give a folder that save() wrote") from cause
        except (OSError, ValueError, pl.exceptions.PolarsError) as cause:
            raise EvaluationError(f"{folder} is damaged; evaluate again") from cause
        if not isinstance(meta, dict) or (meta.get("format"), meta.get("version")) != (
            FORMAT,
            FORMAT_VERSION,
        ):
            raise EvaluationError(f"{folder} holds an evaluation of another format; evaluate again")
        return cls(meta["values"], per_user, meta["groups"], meta["facts"], meta["settings"])


def _number(value: float | None) -> str:
    """Four decimals for shares; fewer for counts such as the mean popularity."""
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rich_table(head: list[str], rows: list[list[str]]) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
    for number, name in enumerate(head):
        # One word a line: the columns stay as narrow as their numbers.
        table.add_column(name.replace(" ", "\n"), justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
