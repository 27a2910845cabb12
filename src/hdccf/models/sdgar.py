"""SD-GAR (Jin et al., 2020): a discriminator that weighs its negatives by importance, and its generator.

The discriminator recommends. Its loss wants the hardest negatives, P*_T ∝ e^{softplus(s)/T}; few are drawn,
by the generator's Q, and weights correct from the one to the other. The generator is a mixture,
Q(i|u) = Σ_k X_uk Y_ik, rows of X and columns of Y on simplexes. Every few epochs X and then Y are solved in
closed form from draws of the present Q; the generator has no gradients.
"""

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hdccf.config import MAX_DIM, SIZES, Choice, Real, Space, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.losses.contrastive import LogWeights, PairLoss
from hdccf.models.factorization import biased_factors
from hdccf.models.negatives import Draws, NegativeSource, Request, cumulated, draw_unobserved, pick, redrawn
from hdccf.models.pairs import PairModel
from hdccf.models.settings import PairSettings, SDGARGeneratorSettings

# Q of an item of which all components are sure that it is not drawn; 1/Q² stays a number.
_LEAST_CHANCE = 1e-12
# Entries of the largest tensor in a solution; what is larger is done in parts.
_PART = 1 << 22


class SDGAR(PairSettings, SDGARGeneratorSettings):
    """SD-GAR, whose negatives are drawn by a mixture that is solved every few epochs.

    `hdccf models sd-gar` lists every setting with its default.

    Examples
    --------
    >>> SDGAR(components=32).components
    32
    """

    model: ClassVar[str] = "sd-gar"

    epochs: int = Field(default=75, ge=1)
    """Passes over the training data at most; early stopping usually ends before."""
    sampler: Literal["uniform", "popularity", "in-batch", "dynamic", "irgan", "sd-gar"] = "sd-gar"
    """Where the negatives come from; `sd-gar` is its own generator, another shows what that one adds."""
    embedding_dim: int = Field(default=32, ge=1, le=MAX_DIM)
    """Length of the discriminator's vectors."""
    init_std: float = Field(default=0.05, gt=0)
    """Spread of the first vectors."""
    batch_size: int = Field(default=512, ge=1)
    """Positive pairs in a step; fewer make more, noisier steps."""
    negatives: int = Field(default=5, ge=1)
    """Items drawn against each positive, which share one weight."""
    l2: float = Field(default=0.01, ge=0)
    """Pull of a batch's own vectors and biases towards zero; the authors take 0.01 to 0.05."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 1e-2, log=True),
            "batch_size": Choice((512, 1024, 2048)),
            "negatives": Choice((5, 10, 20)),
            "l2": Real(1e-4, 1e-1, log=True),
            "components": Choice((32, 64, 128)),
            "temperature": Real(0.2, 2.0, log=True),
            "user_entropy": Real(0.03, 1.0, log=True),
            "item_entropy": Real(0.1, 3.0, log=True),
            **recency(),
        }
    )


class SDGARGenerator(NegativeSource):
    """`sd-gar`: k ~ X_u, then i ~ Y_·k, drawn again where (u, i) is a training pair."""

    of_users: Tensor
    """X."""
    of_items: Tensor
    """Y."""
    seen: Tensor
    """Pairs that were trained on so far."""
    solved: Tensor
    """How often X and Y were solved."""

    def __init__(self, graph: Graph, own: SDGARGeneratorSettings, generator: torch.Generator) -> None:
        super().__init__(graph)
        self.own = own
        degrees = graph.items_of.degrees
        self._period = own.update_every * int(degrees[degrees < graph.n_items].sum())
        x = torch.rand(graph.n_users, own.components, generator=generator)
        y = torch.rand(graph.n_items, own.components, generator=generator)
        self.register_buffer("of_users", x / x.sum(1, keepdim=True))
        self.register_buffer("of_items", y / y.sum(0))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("solved", torch.zeros((), dtype=torch.int64))
        # Made from X and Y when first drawn from, and again after a change.
        self._cumulated: tuple[Tensor, Tensor] | None = None
        self.register_load_state_dict_post_hook(lambda module, keys: self._forget())  # type: ignore[no-untyped-call]

    def prepare(self, request: Request, generator: torch.Generator) -> None:
        if int(self.seen) >= int(self.solved) * self._period:
            self.solve(request, generator)
            self.solved += 1
        self.seen += len(request.users)

    @torch.no_grad()
    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        users, size = request.users, request.size
        items = redrawn(
            lambda asked: self.draw_any(asked, generator),
            lambda asked: self._draw_new(asked, generator),
            self.graph(users),
            users,
            size,
        )
        relative = self.log_chances(users, items) + math.log(len(self.of_items))
        return Draws(items, relative)

    def draw_any(self, users: Int64[Tensor, " n"], generator: torch.Generator) -> Int64[Tensor, " n"]:
        """An item for each user by Q, whether or not it is in the history."""
        if self._cumulated is None:
            self._cumulated = cumulated(self.of_users), cumulated(self.of_items.T)
        of_users, of_items = self._cumulated
        return pick(of_items, pick(of_users, users, generator), generator)

    def _draw_new(self, users: Int64[Tensor, " n"], generator: torch.Generator) -> Int64[Tensor, " n"]:
        distinct, rows = torch.unique(users, return_inverse=True)
        chances = self.of_users[distinct] @ self.of_items.T
        return draw_unobserved(chances, distinct, rows, self.graph(users), generator)

    def log_chances(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """log Q(i|u)."""
        chances = torch.einsum("bk,bsk->bs", self.of_users[users], self.of_items[items])
        return chances.clamp_min(_LEAST_CHANCE).log()

    def _forget(self) -> None:
        self._cumulated = None

    @torch.no_grad()
    def solve(self, request: Request, generator: torch.Generator) -> None:
        """X for the present Y, then Y for the new X."""
        log_sums, values = self._values_of_components(request, generator)
        self.of_users.copy_(users_solution(values, self.own.user_entropy))
        self._forget()
        values = self._values_of_items(request, log_sums, generator)
        self.of_items.copy_(items_solution(values, self.own.item_entropy))
        self._forget()

    def _values_of_components(
        self, request: Request, generator: torch.Generator
    ) -> tuple[Float[Tensor, " users"], Float[Tensor, "users k"]]:
        """log z_u and v_uk, each from draws of its own."""
        size, k = self.own.update_draws, self.own.components
        log_sums, values = [], []
        every_user = torch.arange(len(self.of_users), device=self.of_users.device)
        for users in torch.split(every_user, max(1, _PART // (size * k))):
            _, hardness, log_chances = self._drawn(users, request, generator)
            log_sum = log_importance_sum(hardness, log_chances, self.own.temperature)
            items, hardness, log_chances = self._drawn(users, request, generator)
            weights = importance(hardness, log_chances, log_sum, self.own.temperature) * hardness
            weights = weights / log_chances.exp()
            log_sums.append(log_sum)
            values.append(torch.einsum("us,usk->uk", weights, self.of_items[items]) / size)
        return torch.cat(log_sums), torch.cat(values)

    def _drawn(
        self, users: Int64[Tensor, " u"], request: Request, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "u s"], Float[Tensor, "u s"], Float[Tensor, "u s"]]:
        """Items by Q, softplus of the model's scores of them, and log Q."""
        asked = users.repeat_interleave(self.own.update_draws)
        items = self.draw_any(asked, generator).view(len(users), -1)
        return items, functional.softplus(request.score(users, items)), self.log_chances(users, items)

    def _values_of_items(
        self, request: Request, log_sums: Float[Tensor, " users"], generator: torch.Generator
    ) -> Float[Tensor, "items k"]:
        """t_ik; a component's users are drawn once for all items, so a user's row is scored once for all."""
        size, k = self.own.update_draws, self.own.components
        of_component = torch.arange(k, device=self.of_users.device).repeat_interleave(size)
        drawn = pick(cumulated(self.of_users.T), of_component, generator)
        users, places = torch.unique(drawn, return_inverse=True)
        counts = self.of_users.new_zeros(len(users), k)
        counts.index_put_((places, of_component), counts.new_ones(()), accumulate=True)
        scorer = request.scorer()
        values = torch.zeros_like(self.of_items)
        every_user = torch.arange(len(users), device=users.device)
        for part in torch.split(every_user, max(1, _PART // len(values))):
            chosen = users[part]
            hardness = functional.softplus(scorer.score_block(chosen))
            log_chances = (self.of_users[chosen] @ self.of_items.T).clamp_min_(_LEAST_CHANCE).log_()
            ratio = importance(hardness, log_chances, log_sums[chosen], self.own.temperature)
            values += (ratio * hardness).T @ counts[part]
        return values * (self.of_users.sum(0) / size)


def log_importance_sum(
    hardness: Float[Tensor, "u s"], log_chances: Float[Tensor, "u s"], temperature: float
) -> Float[Tensor, " u"]:
    """log z_u, z_u = mean over draws by Q of e^{h/T}/Q: Σ over all items of e^{h/T} in expectation."""
    return torch.logsumexp(hardness / temperature - log_chances, 1) - math.log(hardness.shape[1])


def importance(
    hardness: Float[Tensor, "u c"],
    log_chances: Float[Tensor, "u c"],
    log_sums: Float[Tensor, " u"],
    temperature: float,
) -> Float[Tensor, "u c"]:
    """ρ = e^{h/T} / (Q z_u), how many times too seldom Q draws an item for P*_T ∝ e^{h/T}."""
    return (hardness / temperature - log_chances - log_sums.unsqueeze(1)).exp()


def users_solution(values: Float[Tensor, "users k"], entropy: float) -> Float[Tensor, "users k"]:
    """X_u = argmax over the simplex of Σ_k X_uk v_uk + λ H(X_u) = softmax(v_u/λ), λ = λ_x·mean_u max_k v."""
    return torch.softmax(values / _scaled(entropy, values.amax(1)), 1)


def items_solution(values: Float[Tensor, "items k"], entropy: float) -> Float[Tensor, "items k"]:
    """Y_·k = argmax over the simplex of Σ_i Y_ik t_ik + λ′ H(Y_·k), λ′ = λ_y·mean_k max_i t."""
    return torch.softmax(values / _scaled(entropy, values.amax(0)), 0)


def _scaled(entropy: float, largest: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    # All values are 0 where every softplus has underflowed: then all shares are alike.
    return (entropy * largest.mean()).clamp_min(torch.finfo(largest.dtype).tiny)


def build_sdgar(settings: SDGAR, train: Interactions, generator: torch.Generator) -> PairModel:
    graph = Graph.of(train)
    return PairModel(
        biased_factors(settings, graph, generator),
        settings,
        graph,
        train,
        adversarial_loss(settings.temperature),
        generator,
        correct_chances=True,
        group="discriminator",
    )


def adversarial_loss(temperature: float) -> PairLoss:
    """½(−log σ(s⁺) + Σ_j w_j softplus(s_j)), w = softmax_j(softplus(s_j)/T − log Q(j|u)).

    The weights are part of what is minimised: gradients flow through them.
    """

    def loss(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        hardness = functional.softplus(negative)
        logits = hardness / temperature
        if log_weights is not None:
            logits = logits + log_weights
        # Without a negative that counts there is nothing to weigh, and a softmax of nothing is no number.
        none = logits.isneginf().all(1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(none, 0.0), 1).masked_fill(none, 0.0)
        return 0.5 * (functional.softplus(-positive) + (weights * hardness).sum(1))

    return loss
