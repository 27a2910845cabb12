"""How an endpoint gets at the model: it takes `service: Service` and returns `await service.answer(job)`.

The job is called with the model that answers now, in a thread of the pool.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from hdccf.recommend.frames import Vocabulary
from hdccf.serving.measures import Measures
from hdccf.serving.problems import ProblemError, problem
from hdccf.serving.served import Holder, Outcome, Served
from hdccf.serving.settings import ServeSettings
from hdccf.serving.work import Pool

T = TypeVar("T")
_NAMED = 10
_LONGEST_NAME = 256


@dataclass(frozen=True)
class AppService:
    """What the endpoints of one app share."""

    holder: Holder
    pool: Pool
    measures: Measures
    settings: ServeSettings

    async def answer(self, job: Callable[[Served], T]) -> T:
        """What the job makes of the model that answers now; the model stays the same to its end."""
        served = self.holder.current

        def timed() -> T:
            started = time.perf_counter()
            try:
                return job(served)
            finally:
                self.measures.scoring.observe(time.perf_counter() - started)

        return await self.pool.run(timed)

    async def respond(self, job: Callable[[Served], BaseModel | dict[str, Any]]) -> Response:
        """The same as JSON, made in the thread too: the event loop only passes it on."""
        content = await self.answer(lambda served: to_json(job(served)))
        return Response(content, media_type="application/json")

    def reload(self) -> Outcome:
        """Takes the run's model anew, in the calling thread."""
        outcome = self.holder.reload()
        self.measures.reloads.labels("accepted" if outcome.accepted else "rejected").inc()
        self.measures.now_answers(outcome.version)
        return outcome


def service_of(request: Request) -> AppService:
    service: AppService = request.app.state.service
    return service


Service = Annotated[AppService, Depends(service_of)]


def distinct(vocabulary: Vocabulary, ids: list[Any]) -> list[Any]:
    """Each once, as the data spells it, in the order in which they came."""
    codes = dict.fromkeys(vocabulary.codes(ids).tolist())
    own: list[Any] = vocabulary.ids.gather(list(codes)).to_list()
    return own


def require_known(vocabulary: Vocabulary, ids: list[Any]) -> None:
    """A 404 that names the ids that nobody knows."""
    unknown = [str(own) for own in ids if vocabulary.find(own) is None]
    if not unknown:
        return
    first = unknown[0][:_LONGEST_NAME]
    more = f" (like {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    detail = (
        f"{vocabulary.kind} {first!r}{more} is not in {vocabulary.where}; "
        f"known are for example {vocabulary.ids.head(3).to_list()}"
    )
    named = [own[:_LONGEST_NAME] for own in unknown[:_NAMED]]
    raise ProblemError(problem(404, detail, "unknown-id", kind=vocabulary.kind, ids=named))
