"""The contrastive losses: reference functions, their fused forms over a block, and diagnostics."""

from hdccf.losses.contrastive import SMALL_SHARE as SMALL_SHARE
from hdccf.losses.contrastive import bpr_loss as bpr_loss
from hdccf.losses.contrastive import contrastive_loss as contrastive_loss
from hdccf.losses.contrastive import debias as debias
from hdccf.losses.contrastive import effective_sample_size as effective_sample_size
from hdccf.losses.contrastive import log_frequency_weights as log_frequency_weights
from hdccf.losses.contrastive import log_mean_exp as log_mean_exp
from hdccf.losses.contrastive import log_mean_exp_by_group as log_mean_exp_by_group
from hdccf.losses.contrastive import log_negative_score as log_negative_score
from hdccf.losses.contrastive import neighbour_contrastive_loss as neighbour_contrastive_loss
from hdccf.losses.contrastive import squared_error as squared_error
