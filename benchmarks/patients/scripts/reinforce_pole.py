"""REINFORCE with a mean baseline on a pole-balancing toy, sixteen environments side by side."""

import math

import torch
from common import options, report
from torch import nn
from torch.distributions import Categorical

HORIZON = 120


class Poles:
    """Cart and pole, Euler integration, force of fixed size to the left or right."""

    def __init__(self, n: int) -> None:
        self.state = 0.1 * torch.rand(n, 4) - 0.05
        self.alive = torch.ones(n, dtype=torch.bool)

    def step(self, action: torch.Tensor) -> torch.Tensor:
        x, v, theta, omega = self.state.unbind(1)
        force = 20.0 * action - 10.0
        cos, sin = theta.cos(), theta.sin()
        temp = (force + 0.05 * omega**2 * sin) / 1.1
        alpha = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        acc = temp - 0.05 * alpha * cos / 1.1
        tau = 0.02
        self.state = torch.stack([x + tau * v, v + tau * acc, theta + tau * omega, omega + tau * alpha], 1)
        reward = self.alive.float()
        inside = (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < 12 * math.pi / 180)
        self.alive &= inside
        return reward


def rollout(policy: nn.Module, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    env = Poles(n)
    log_probs, rewards = [], []
    for _ in range(HORIZON):
        dist = Categorical(logits=policy(env.state * torch.tensor([1.0, 1.0, 5.0, 1.0])), validate_args=False)
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        rewards.append(env.step(action.float()))
        if not env.alive.any():
            break
    return torch.stack(log_probs), torch.stack(rewards)


def main() -> None:
    args = options()
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for update in range(args.steps or 40):
        log_probs, rewards = rollout(policy, 16)
        returns = torch.zeros_like(rewards)
        running = torch.zeros(rewards.shape[1])
        for t in reversed(range(len(rewards))):
            running = rewards[t] + 0.98 * running
            returns[t] = running
        played = rewards > 0
        advantage = (returns - returns[played].mean()) / (returns[played].std() + 1e-6)
        loss = -(log_probs * advantage)[played].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(f"update {update}: mean length {rewards.sum(0).mean().item():.1f}, loss {loss.item():+.3f}")
    with torch.no_grad():
        _, rewards = rollout(policy, 64)
    report(rewards.sum(0).mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
