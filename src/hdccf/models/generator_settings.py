"""Settings of the generators that learn where negatives are. Knows no torch.

IRGAN and SD-GAR have them as their own; another model that takes a generator as its sampler has it with these
defaults.
"""

from pydantic import Field

from hdccf.config import Settings


class IRGANGeneratorSettings(Settings):
    """IRGAN's generator: a factorisation whose softmax over all items is what is drawn from."""

    temperature: float = Field(default=0.2, gt=0)
    """Of the softmax that negatives are drawn from; smaller draws the generator's favourites only."""
    positive_share: float = Field(default=0.2, ge=0, lt=1)
    """Of the draws that teach the generator: how many are the user's own items and not its own choice."""
    policy_draws: int = Field(default=2, ge=1)
    """Draws that teach the generator, for each of a user's items; more make its steps less noisy."""
    warm_epochs: int = Field(default=30, ge=0)
    """First epochs in which the generator learns as BPR with `dynamic` negatives, before it is rewarded."""


class SDGARGeneratorSettings(Settings):
    """SD-GAR's generator: a mixture that is drawn from in constant time and solved in closed form."""

    components: int = Field(default=64, ge=1)
    """K, the mixture's number of components; more tell users apart better."""
    temperature: float = Field(default=0.5, gt=0)
    """T of exp(softplus(s)/T), what the draws go for; smaller looks at the hardest negatives only."""
    user_entropy: float = Field(default=0.1, gt=0)
    """λ_x: how even users' shares of components stay; large makes all users alike."""
    item_entropy: float = Field(default=1.0, gt=0)
    """λ_y: how even components' shares of items stay; large draws uniformly."""
    update_every: int = Field(default=5, ge=1)
    """Epochs from one solution of the mixture to the next."""
    update_draws: int = Field(default=64, ge=1)
    """Draws for each of a solution's means; more are less noisy, and cost in proportion."""
