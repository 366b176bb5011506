import torch

from gramian import Categorical, DKMResult, Marginals, objective


def test_the_objective_adds_up_and_turns_its_sign_once():
    q = Marginals(torch.zeros(4, 2), torch.full((4, 1), 1e-12))
    kl = {"a": torch.tensor(3.0), "b": torch.tensor(5.0)}
    y = torch.tensor([0, 1, 0, 1])
    terms = objective(DKMResult(q, kl, {}), Categorical(2), y, torch.zeros(1, 1, 2), num_data=16)
    torch.testing.assert_close(terms.expected_log_lik, torch.tensor(0.5).log())
    assert terms.kl == 8
    torch.testing.assert_close(terms.total, torch.tensor(0.5).log() - 0.5)
    assert terms.loss == -terms.total
