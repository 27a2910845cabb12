"""Request and response bodies with their limits; a request that breaks one is refused (422) unscored."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from hdccf.config import EXPLAINED, MAX_DIAL, REASONS, TOP_K
from hdccf.data.event_log import Event
from hdccf.serving.middleware import Problem

MAX_USERS = 256
"""Users, or pairs of similar nodes, in a request; ask again for more."""
MAX_HISTORY = 1000
"""Items that a new user comes with, or that are to be explained or compared."""
MAX_LISTED = 10_000
"""Items that are allowed or denied."""
MAX_PAIRS = 1000
MAX_EVENTS = 1000
"""Events in a request."""
MAX_ITEMS = 1000
"""New items in a request."""
MAX_ATTRIBUTES = 100
MAX_TEXT = 2000
MAX_VALUES = 1000
MAX_K = 500
MAX_TOP = 100
MAX_QUERY = 200
MAX_FOUND = 100

_LONGEST_ID = 256
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_NOT_GIVEN: Any = None
"""Of a field that one of two shapes has; null is refused."""


def _whole(value: Any) -> Any:
    """JSON knows one kind of number, and 21.0 is an integer of its."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _checked_id(value: Any) -> int | str:
    # By hand: a union would complain once for each of its kinds, at places that no body has.
    value = _whole(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    # Half a character (a lone surrogate) cannot be encoded.
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID and not _SURROGATE.search(value):
        return value
    raise PydanticCustomError("id", "an id is an integer of 64 bits or a text of 1 to 256 characters")


Id = Annotated[
    int | str,
    PlainValidator(_checked_id),
    WithJsonSchema(
        {
            "description": "As in the data that was trained on; a number and its text are the same id.",
            "anyOf": [
                {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
                {"type": "string", "minLength": 1, "maxLength": _LONGEST_ID},
            ],
        }
    ),
]
# The validator comes last: limits behind it would be kept but not described.
K = Annotated[
    int,
    Field(strict=True, ge=1, le=MAX_K, description="How many each, or all there are."),
    BeforeValidator(_whole),
]
Top = Annotated[int, Field(strict=True, ge=1, le=MAX_TOP), BeforeValidator(_whole)]
Ids = Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)]
History = Annotated[
    list[Id],
    Field(
        max_length=MAX_HISTORY,
        description="The history of a new user, or the fresh items of a known one, the last the latest.",
    ),
]
Popularity = Annotated[float, Field(strict=True, ge=-MAX_DIAL, le=MAX_DIAL, allow_inf_nan=False)]
Diversity = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Value = (
    Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
    | Annotated[str, Field(strict=True, max_length=MAX_TEXT)]
)
"""Of an attribute."""
Values = Annotated[list[Value], Field(max_length=MAX_VALUES)]
Listed = Annotated[list[Id], Field(max_length=MAX_LISTED)]


class Body(BaseModel):
    """Unknown names are refused: a misspelt `inclued_seen` must not be silently without effect."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class _OneOf(Body):
    """A body with exactly one of two fields, which are not optional in the description either."""

    either: ClassVar[tuple[str, str]]
    both: ClassVar[bool] = False
    """Whether both fields may be given."""

    @model_validator(mode="before")
    @classmethod
    def _has_one(cls, value: Any) -> Any:
        found = sum(name in value for name in cls.either) if isinstance(value, dict) else 0
        if found != 1 and not (found and cls.both):
            words = f"{' or '.join(cls.either)}{', or both' if cls.both else ''}"
            raise PydanticCustomError("shape", f"give {'' if cls.both else 'either '}{words}")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        for name in cls.either:
            schema["properties"][name].pop("default")
        return {**schema, "anyOf" if cls.both else "oneOf": [{"required": [name]} for name in cls.either]}


class RecommendBody(_OneOf):
    """For users that the model knows, for a new user, who is known by a history of items, or both: one user
    and the items since the training, which are added to the user's history."""

    either = ("users", "items")
    both = True

    users: Ids = _NOT_GIVEN
    items: History = _NOT_GIVEN
    unknown: Literal["error", "skip", "popular"] = "error"
    """For a user who is not known: a problem in place of the list (404 where no user is known), no list, or
    a list of popular items."""
    k: K = TOP_K
    include_seen: bool = Field(default=False, strict=True)
    """Whether items of the history may be recommended."""
    allow: Listed | None = None
    """Only these items; ids that are not in the catalogue are passed over."""
    deny: Listed | None = None
    """None of these items."""
    filter: dict[str, Value | Values] | None = Field(default=None, max_length=MAX_ATTRIBUTES)
    """Attributes of the items file with the value, or one of the values, that items must have."""
    diversity: Diversity = 0.0
    """From 0, the best items, to 1, items as different from each other as possible."""
    popularity: Popularity | None = None
    """The popularity dial, instead of the run's own: below 0 more popular items, above 0 fewer."""

    @model_validator(mode="after")
    def _items_are_of_one_user(self) -> "RecommendBody":
        if {"users", "items"} <= self.model_fields_set and len(self.users) > 1:
            raise PydanticCustomError("shape", "items beside users are the fresh items of one user; give one")
        return self


class SimilarBody(_OneOf):
    """Items like these, or users like these."""

    either = ("items", "users")

    items: Ids = _NOT_GIVEN
    users: Ids = _NOT_GIVEN
    k: K = TOP_K


class Pair(Body):
    user: Id
    item: Id


class ScoreBody(Body):
    """Pairs of a user and an item."""

    pairs: list[Pair] = Field(min_length=1, max_length=MAX_PAIRS)


class ExplainBody(_OneOf):
    """For a user that the model knows, for a new user, who is known by a history of items, or both: a user
    and the items since the training."""

    either = ("user", "had")
    both = True

    user: Id = _NOT_GIVEN
    had: History = _NOT_GIVEN
    items: Ids | None = None
    """What to explain; the best k if not given."""
    k: Top = EXPLAINED
    """How many of the best, where no items are given."""
    top: Top = REASONS
    """How many reasons each."""


class EventBody(Body):
    """One event of a user."""

    id: Id
    """The sender's own, so that an event that is sent twice counts once."""
    user: Id
    item: Id
    time: datetime | None = None
    """ISO 8601, or seconds since 1970; UTC where it has no zone, the server's time where it is not given."""

    @field_validator("time")
    @classmethod
    def _in_utc(cls, time: datetime | None) -> datetime | None:
        try:
            return (
                None if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
            )
        except OverflowError:
            raise PydanticCustomError("time", "a time is between the years 1 and 9999, in UTC too") from None

    def logged(self) -> Event:
        """As the log keeps it."""
        time = self.time or datetime.now(UTC)
        return Event(id=str(self.id), user=str(self.user), item=str(self.item), time=time)


class EventsBody(Body):
    """Events since the training, of known and unknown users and items."""

    events: list[EventBody] = Field(min_length=1, max_length=MAX_EVENTS)


class ItemBody(BaseModel):
    """An item and its attributes, under the names of the items file."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Value | Values | None] = Field(init=False)

    id: Id

    @model_validator(mode="after")
    def _is_bounded(self) -> "ItemBody":
        if len(self.model_extra or {}) > MAX_ATTRIBUTES:
            raise PydanticCustomError("shape", f"an item has at most {MAX_ATTRIBUTES} attributes")
        return self


class ItemsBody(Body):
    """Items that are new, or known ones with other attributes."""

    items: list[ItemBody] = Field(min_length=1, max_length=MAX_ITEMS)


class Answer(BaseModel):
    """What every answer has."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str
    """The version of the model that answered; /v1/model says more."""


class ScoredItem(BaseModel):
    item: int | str
    score: float
    title: str | None = None


class RecommendedList(BaseModel):
    user: int | str | None
    """Whose list; null for a new user."""
    items: list[ScoredItem]
    """Best first."""
    source: Literal["model", "popular"]
    """Whether the items are the model's or, as there is no history, those with the most users."""
    problem: Problem | None = None
    """Why there are no items for this user, where others in the request have some."""


class Recommended(Answer):
    lists: list[RecommendedList]
    """One for each user, in the order that was asked for; a user who was named twice has one."""
    popularity: float
    """The setting of the popularity dial."""


class Recorded(Answer):
    accepted: int
    """Events that are new, and on the disk."""
    duplicates: int
    """Events whose id was there already."""


class AddedItems(Answer):
    added: int
    """Items that the model did not know before."""
    items: int
    """In the catalogue."""


class SimilarNode(BaseModel):
    id: int | str
    score: float
    title: str | None = None


class SimilarList(BaseModel):
    id: int | str
    similar: list[SimilarNode]
    """Most alike first, without itself."""


class Similar(Answer):
    by: str
    """What they are compared by, in words."""
    lists: list[SimilarList]


class ScoredPair(ScoredItem):
    user: int | str


class Scored(Answer):
    pairs: list[ScoredPair]
    """In the order that was asked for."""


class Reason(BaseModel):
    item: int | str
    """One of the user's own."""
    contribution: float
    share: float
    """Of the sum of all positive contributions; below zero for a contribution against the item."""
    title: str | None = None


class ExplainedItem(ScoredItem):
    because: list[Reason]
    """The largest contributions first."""


class Explained(Answer):
    surrogate: str
    """What the contributions add up to, in words."""
    agreement: float | None
    """Kendall's τ of the surrogate with the model over the user's candidates: 1 is the same order."""
    items: list[ExplainedItem]


class FoundItem(BaseModel):
    item: int | str
    title: str | None
    users: int
    """How many have it in their history."""


class FoundItems(Answer):
    items: list[FoundItem]


class FoundUser(BaseModel):
    user: int | str
    events: int


class FoundUsers(Answer):
    users: list[FoundUser]


class ModelFacts(Answer):
    name: str
    """As in hdccf models."""
    run: str
    """The name of the run's folder."""
    users: int
    items: int
    events: int
    fresh_events: int
    """In the log of events since the training."""
    loaded_at: float
    """Seconds since 1970."""
    last_rejection: str | None
    """Why the last new model was not taken, if it was not."""


class Reloaded(Answer):
    detail: str
