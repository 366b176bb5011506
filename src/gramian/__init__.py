"""Deep kernel machines: representation learning with Gram matrices, without features or weights."""

from gramian.gram.blocks import GramBlocks as GramBlocks
from gramian.gram.blocks import Marginals as Marginals
from gramian.gram.conditional import VarianceCheck as VarianceCheck
from gramian.gram.errors import NegativeVarianceError as NegativeVarianceError
from gramian.gram.errors import NotPSDError as NotPSDError
from gramian.gram.errors import NumericalError as NumericalError
from gramian.gram.skr import SKR as SKR
from gramian.nn.conv_dkm import ConvDKM as ConvDKM
from gramian.nn.conv_dkm import ConvDKMConfig as ConvDKMConfig
from gramian.nn.dense_dkm import DenseDKM as DenseDKM
from gramian.nn.dense_dkm import DenseDKMConfig as DenseDKMConfig
from gramian.nn.model import DKM as DKM
from gramian.nn.model import DKMResult as DKMResult
from gramian.nn.norm import NormChoice as NormChoice
from gramian.train.objective import Terms as Terms
from gramian.train.objective import objective as objective

__version__ = "0.1.0.dev0"
