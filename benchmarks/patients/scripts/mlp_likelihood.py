"""An MLP classifier with a hand-written likelihood, trained by AdamW."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self, n_in: int, n_hidden: int, n_out: int) -> None:
        super().__init__()
        self.fc_in = nn.Linear(n_in, n_hidden)
        self.fc_mid = nn.Linear(n_hidden, n_hidden)
        self.fc_out = nn.Linear(n_hidden, n_out)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc_in(x))
        x = torch.relu(self.fc_mid(x))
        return torch.log_softmax(self.fc_out(x), dim=-1)


def init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.1)
        nn.init.constant_(module.bias, 0.0)


def main() -> None:
    opt = options(("F11", "F19"))
    x, y = load_digits(return_X_y=True)
    x = torch.as_tensor(x, dtype=torch.float32) / 16
    y = torch.as_tensor(y)
    split = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, held_out = split[:1440], split[1440:]

    model = Classifier(64, 80, 10)
    if opt.fault == "F11":
        model.apply(init_weights)
    sign = 1.0 if opt.fault == "F19" else -1.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)

    for step in range(opt.steps or 300):
        idx = train[torch.randint(len(train), (96,))]
        log_likelihood = model(x[idx]).gather(1, y[idx, None]).squeeze(1)
        loss = sign * log_likelihood.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(step, loss.item())

    model.eval()
    with torch.inference_mode():
        predicted = model(x[held_out]).argmax(dim=1)
    report((predicted == y[held_out]).float().mean(), higher_is_better=True)


if __name__ == "__main__":
    main()
