"""Five-fold cross validation on the wine data, one fresh model a fold."""

import torch
from common import options, report
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn


def train_fold(x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    for _ in range(steps):
        pick = torch.randperm(len(x))[:32]
        optimizer.zero_grad()
        criterion(model(x[pick]), y[pick]).backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    args = options()
    data, target = load_wine(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = []
    for fold, (train, test) in enumerate(folds.split(data, target)):
        scaler = StandardScaler().fit(data[train])
        x = torch.tensor(scaler.transform(data), dtype=torch.float32)
        y = torch.tensor(target)
        model = train_fold(x[train], y[train], (args.steps or 400) // 5)
        with torch.no_grad():
            scores.append((model(x[test]).argmax(1) == y[test]).float().mean().item())
        print(f"fold {fold}: {scores[-1]:.3f}")
    report(sum(scores) / len(scores), higher_is_better=True)


if __name__ == "__main__":
    main()
