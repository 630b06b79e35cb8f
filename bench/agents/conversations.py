#!/usr/bin/env python3
"""Agent-like conversations as token ids: conversations.py [--seed N] [--count N] prints them as JSON.

An agent has a system prompt and a list of tools, which all its conversations begin with. A conversation is a task and then
turns: a reply of the model, and what comes back from a tool or from the user. Some conversations branch: a later request goes
back to an earlier turn and continues with another message, or asks for the same reply again. The same seed gives the same
conversations on every machine.

The set is a list of requests in the order in which they are sent. A request continues request `after` (-1: none) with the
tokens `more`, after that request's reply if `with_reply` is set, and asks for `n_reply` tokens. Requests of several
conversations alternate."""
import argparse
import json


class Random:
    """Python's generator may change; this one does not."""

    def __init__(self, seed):
        self.state = seed * 2 + 1

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        return (self.state >> 33) % n

    def between(self, low, high):
        return low + self.below(high - low + 1)


def text(random, n, vocab):
    return [vocab[0] + random.below(vocab[1] - vocab[0]) for _ in range(n)]


def make_agents(random, n, vocab):
    tools = [text(random, random.between(40, 120), vocab) for _ in range(24)]
    agents = []
    for i in range(n):
        system = text(random, random.between(80, 300), vocab)
        if i % 3 == 2:  # another selection of tools after the same system prompt
            system = agents[i - 1][0]
        chosen = sorted({random.below(len(tools)) for _ in range(random.between(3, 8))})
        agents.append((system, [token for tool in chosen for token in tools[tool]]))
    return agents


def make_conversation(random, agent, vocab):
    """Its requests; `after` counts within the conversation."""
    requests = [{"after": -1, "with_reply": False, "more": agent[0] + agent[1] + text(random, random.between(15, 60), vocab)}]
    for _ in range(random.between(2, 7)):
        kind, at = random.below(10), random.below(len(requests))
        if kind == 0:  # the same reply again
            requests.append({"after": at, "with_reply": False, "more": []})
            continue
        after = at if kind == 1 else len(requests) - 1  # a branch, or the next turn
        requests.append({"after": after, "with_reply": True, "more": text(random, random.between(10, 100), vocab)})
    for request in requests:
        request["n_reply"] = random.between(4, 24)
    return requests


def make_set(seed=1, count=200, vocab=(300, 500), n_agents=12, n_active=24):
    """The requests of all conversations; `n_active` of them alternate."""
    random = Random(seed)
    agents = make_agents(random, n_agents, vocab)
    waiting = [make_conversation(random, agents[random.below(len(agents))], vocab) for _ in range(count)]
    active, requests = [], []
    while waiting or active:
        while waiting and len(active) < n_active:
            active.append({"requests": waiting.pop(0), "numbers": []})
        chosen = active[random.below(len(active))]
        request = chosen["requests"][len(chosen["numbers"])]
        request["after"] = chosen["numbers"][request["after"]] if request["after"] >= 0 else -1
        chosen["numbers"].append(len(requests))
        requests.append(request)
        if len(chosen["numbers"]) == len(chosen["requests"]):
            active.remove(chosen)
    return requests


class Tree:
    """All texts that were computed, as a tree of tokens."""

    def __init__(self):
        self.root, self.size = {}, 0

    def add(self, tokens):
        """Returns how many of the first tokens were there."""
        node, present = self.root, 0
        for i, token in enumerate(tokens):
            if token in node:
                present = i + 1
            else:
                node[token] = {}
                self.size += 1
            node = node[token]
        return present


def least_computed(exchanges):
    """The fewest prompt tokens that must be computed when (prompt, reply) are served one after the other with unlimited memory:
    those of a prompt that no earlier text begins with, and at least its last one, for its logits. The last token of a reply is
    never decoded. Also returns the number of distinct tokens in memory."""
    tree, least = Tree(), 0
    for prompt, reply in exchanges:
        least += len(prompt) - min(tree.add(prompt), len(prompt) - 1)
        tree.add(prompt + reply[:-1])
    return least, tree.size


def expected_exchanges(requests):
    """Prompts and replies when every prompt has one reply: what it is does not matter."""
    exchanges, replies = [], {}
    for request in requests:
        before = exchanges[request["after"]] if request["after"] >= 0 else ([], [])
        prompt = before[0] + (before[1] if request["with_reply"] else []) + request["more"]
        first = replies.setdefault(tuple(prompt), len(replies))
        exchanges.append((prompt, [("reply", first, i) for i in range(request["n_reply"])]))
    return exchanges


def expected_distinct(requests):
    """The number of distinct tokens in memory."""
    return least_computed(expected_exchanges(requests))[1]


def expected_checkpoints(requests):
    """The number of distinct lengths of texts at which the fewest tokens are computed: what models with recurrent layers need states
    of."""
    tree, points = Tree(), set()
    for prompt, reply in expected_exchanges(requests):
        taken = min(tree.add(prompt), len(prompt) - 1)
        if taken:
            points.add(hash(tuple(prompt[:taken])))
        tree.add(prompt + reply[:-1])
    return len(points)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="conversations")
    args = parser.parse_args()
    requests = make_set(args.seed, args.count)
    print(json.dumps(requests))


if __name__ == "__main__":
    main()
