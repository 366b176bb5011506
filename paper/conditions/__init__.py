"""The paper's experiment on condition numbers: how SKR and the KL keep Gram matrices invertible."""
