"""Trains an EAGLE-3 head for models/tales.gguf, on a CPU. It needs PyTorch 1.13 or newer and the built library.

  python3 train_eagle.py --model models/tales.gguf --start models/tales-mtp.gguf --out OUT [--minutes 14]

1. Tales writes stories at several temperatures (with Tenon); the states before three of its layers are kept.
2. The head reads these states and the embedding of the next token, and learns the distribution of the token after that
   over the GUESSED most frequent tokens; it then continues from its own output, STEPS deep. As when guessing, a deeper
   step sees the entries of the text made from the model's states, and only those of the guess from its own.
3. It does not begin at random: its matrices come from the layer for further tokens and from Tales.
4. OUT/tales-eagle3.gguf, with the names that GGUF files have for such heads, and OUT/eagle3.json. Embedding and
   tokenizer are those of Tales; the embedding is not in the file.

Minutes are processor time of all threads. It stops by itself and continues when called again, if --slice is less than
--minutes.
"""
import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import gguf_io

LENGTH, GUESSED, STEPS, LAYERS, TAPS = 256, 2048, 3, 11, (2, 6, 11)
DIM, HEADS, KV, SIZE, FF, EPS = 256, 8, 4, 32, 704, 1e-5


def normed(x, weight, eps=EPS):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope_tables(length):
    inverse = 10000.0 ** (-torch.arange(0, SIZE, 2, dtype=torch.float32) / SIZE)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Tales:
    """The model, without gradients: tensors of the file by name."""

    def __init__(self, path):
        self.file = gguf_io.Reader(path)
        self.w = {name: torch.from_numpy(np.ascontiguousarray(t)) for name, t in self.file.tensors.items()}
        self.embedding, self.out_norm = self.w["token_embd.weight"], self.w["output_norm.weight"]

    def logits(self, state):
        return normed(state, self.out_norm) @ self.embedding.T


def write_stories(path, n, batch=32):
    """[n, LENGTH] tokens and the states of all of them but the last, by Tenon; after the end of a story another one begins."""
    import ctypes as c

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bindings/python"))
    from tenon import _types as t
    from tenon._library import check, lib

    model, session, rng = c.POINTER(t.tn_model)(), c.POINTER(t.tn_session)(), np.random.default_rng(1)
    check(lib.tn_model_open(path.encode(), None, c.byref(model)))
    params = lib.tn_session_params_default()
    params.n_seqs, params.n_ctx, params.n_outputs, params.n_threads = batch, batch * LENGTH, batch, int(os.environ.get("THREADS", "2"))
    params.states, params.n_state_layers = True, len(TAPS)
    params.state_layers[: len(TAPS)] = TAPS
    check(lib.tn_session_open(model, c.byref(params), c.byref(session)))
    vocab = lib.tn_model_get_info(model).n_vocab
    tokens = np.zeros((n, LENGTH), np.int16)
    states = np.zeros((n, LENGTH - 1, len(TAPS) * DIM), np.float16)
    ids, all_seqs, wanted = (c.c_int32 * batch)(), (c.c_int32 * batch)(*range(batch)), (c.c_bool * batch)(*[True] * batch)
    for first in range(0, n, batch):
        lib.tn_session_clear(session)
        temperature, current = rng.random((batch, 1)) * 0.9 + 0.1, np.zeros(batch, np.int64)
        for at in range(LENGTH - 1):
            ids[:] = current.tolist()
            check(lib.tn_session_decode(session, c.byref(t.tn_batch(n_tokens=batch, tokens=ids, seqs=all_seqs, outputs=wanted))))
            made = np.ctypeslib.as_array(lib.tn_session_state(session, 0), (batch, len(TAPS) * DIM))
            states[first : first + batch, at] = made[: n - first].astype(np.float16)
            logits = np.ctypeslib.as_array(lib.tn_session_logits(session, 0), (batch, vocab))
            noisy = logits / temperature - np.log(-np.log(rng.random((batch, vocab), np.float32) + 1e-20))  # Gumbel: a draw is the argmax
            current = np.where(current == 1, 0, noisy.argmax(-1))
            tokens[first : first + batch, at + 1] = current[: n - first]
    lib.tn_session_free(session)
    lib.tn_model_close(model)
    return tokens, states


class Eagle(nn.Module):
    def __init__(self):
        super().__init__()
        width = len(TAPS) * DIM
        self.features_norm, self.token_norm, self.state_norm = (nn.Parameter(torch.ones(n)) for n in (width, DIM, DIM))
        self.ffn_norm, self.out_norm = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.fc, self.o = linear(width, DIM), linear(HEADS * SIZE, DIM)
        self.q, self.k, self.v = linear(2 * DIM, HEADS * SIZE), linear(2 * DIM, KV * SIZE), linear(2 * DIM, KV * SIZE)
        self.gate, self.up, self.down = linear(DIM, FF), linear(DIM, FF), linear(FF, DIM)
        self.output = linear(DIM, GUESSED)

    def reduce(self, features):
        return self.fc(normed(features, self.features_norm))

    def forward(self, embedded, states, entries, tables):
        """The states after tokens with these states before them. entries: keys and values of the steps before, the
        first of them from the model's states; the tokens of this step are one position later each time."""
        b, n, depth = embedded.shape[0], embedded.shape[1], len(entries)
        x = torch.cat((normed(embedded, self.token_norm), normed(states, self.state_norm)), -1)
        cos, sin = tables[0][depth + 1 : depth + 1 + n], tables[1][depth + 1 : depth + 1 + n]
        split = lambda y, heads: y.view(b, n, heads, SIZE).transpose(1, 2)
        q = rotate(split(self.q(x), HEADS), cos, sin).reshape(b, KV, HEADS // KV, n, SIZE)
        entries.append((rotate(split(self.k(x), KV), cos, sin), split(self.v(x), KV)))
        keys, values = entries[0][0][:, :, :n], entries[0][1][:, :, :n]  # positions 1 … n; the query is depth later
        scores = q @ keys[:, :, None].transpose(-1, -2)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -1e9)
        later = [(k[:, :, :n], v[:, :, :n]) for k, v in entries[1:]]
        own = [(q * k[:, :, None]).sum(-1, keepdim=True) for k, _ in later]  # the guess's own entries, one per step
        share = torch.softmax(torch.cat([scores] + own, -1) / math.sqrt(SIZE), -1)
        mixed = share[..., :n] @ values[:, :, None]
        for i, (_, v) in enumerate(later):
            mixed = mixed + share[..., n + i : n + i + 1] * v[:, :, None]
        states = states + self.o(mixed.reshape(b, HEADS, n, SIZE).transpose(1, 2).reshape(b, n, -1))
        y = normed(states, self.ffn_norm)
        return states + self.down(F.silu(self.gate(y)) * self.up(y))

    def logits(self, states):
        return self.output(normed(states, self.out_norm))


@torch.no_grad()
def begin_from(eagle, start, tales, guessed, features, embedded):
    """What the layer for further tokens does, as far as a head of this form can: its input matrix becomes parts of fc,
    q, k and v. Sample features and embeddings set the scales of what is normalised elsewhere."""
    w = {name.split("blk.%d." % LAYERS)[-1]: torch.from_numpy(np.ascontiguousarray(t)) for name, t in gguf_io.Reader(start).tensors.items()}
    size = lambda x: x.pow(2).mean(-1, keepdim=True).sqrt()
    of_token, of_state = w["nextn.eh_proj.weight"][:, :DIM], w["nextn.eh_proj.weight"][:, DIM:]
    last = features[:, -DIM:]
    state = normed(last, tales.out_norm)
    eagle.features_norm[-DIM:] = tales.out_norm * w["nextn.hnorm.weight"] * (size(features) / size(last) / size(state)).mean()
    eagle.fc.weight.normal_(0, 0.002)
    eagle.fc.weight[:, -DIM:] = of_state
    eagle.token_norm.copy_(w["nextn.enorm.weight"])
    reduced = eagle.reduce(features)
    whole = reduced + normed(embedded, eagle.token_norm) @ of_token.T
    eagle.state_norm.fill_((size(reduced) / size(whole)).mean())
    for name, p in (("attn_q", eagle.q), ("attn_k", eagle.k), ("attn_v", eagle.v)):
        matrix = w[name + ".weight"] * w["attn_norm.weight"]
        p.weight[:, DIM:] = matrix
        p.weight[:, :DIM] = matrix @ of_token / size(whole).mean()
    for name, p in (("attn_output", eagle.o), ("ffn_gate", eagle.gate), ("ffn_up", eagle.up), ("ffn_down", eagle.down)):
        p.weight.copy_(w[name + ".weight"])
    eagle.ffn_norm.copy_(w["ffn_norm.weight"])
    eagle.out_norm.copy_(w["nextn.shared_head_norm.weight"])
    eagle.output.weight.copy_(tales.embedding[guessed])


def run(eagle, tales, guessed, tokens, features, tables):
    """Losses and agreements of every step. Entry i has token i + 1 and the states after token i."""
    with torch.no_grad():
        embedded = tales.embedding[tokens]
        target = torch.softmax(tales.logits(features[..., -DIM:]), -1)  # [b, LENGTH - 1]: after token i
        likeliest, share = target.argmax(-1), target[..., guessed]
    n, losses, agree, entries = features.shape[1], [], [], []
    state = eagle.reduce(features)[:, :-1]
    for depth in range(STEPS):
        state = eagle(embedded[:, 1 + depth : n], state, entries, tables)  # of the tokens 1 + depth … n - 1
        logits = eagle.logits(state)
        losses.append(-(share[:, 1 + depth :] * F.log_softmax(logits, -1)).sum(-1).mean())
        with torch.no_grad():
            agree.append((guessed[logits.argmax(-1)] == likeliest[:, 1 + depth :]).float().mean())
        state = state[:, :-1]
    return losses, agree


def save(path, eagle, tales, guessed):
    k = tales.file.keys
    keys = [("general.architecture", 8, "eagle3"), ("general.name", 8, "Tales, EAGLE-3 head"), ("general.license", 8, "mit"),
            ("eagle3.vocab_size", 4, len(k["tokenizer.ggml.tokens"])), ("eagle3.context_length", 4, 512), ("eagle3.embedding_length", 4, DIM),
            ("eagle3.block_count", 4, 1), ("eagle3.feed_forward_length", 4, FF), ("eagle3.attention.head_count", 4, HEADS),
            ("eagle3.attention.head_count_kv", 4, KV), ("eagle3.rope.dimension_count", 4, SIZE), ("eagle3.rope.freq_base", 6, 10000.0),
            ("eagle3.attention.layer_norm_rms_epsilon", 6, EPS), ("eagle3.target_layers", ("arr", 4), list(TAPS)),
            ("eagle3.target_hidden_size", 4, DIM), ("eagle3.norm_before_fc", 7, True), ("eagle3.norm_before_residual", 7, False),
            ("tokenizer.ggml.model", 8, k["tokenizer.ggml.model"]), ("tokenizer.ggml.pre", 8, k["tokenizer.ggml.pre"]),
            ("tokenizer.ggml.tokens", ("arr", 8), k["tokenizer.ggml.tokens"]), ("tokenizer.ggml.token_type", ("arr", 5), k["tokenizer.ggml.token_type"]),
            ("tokenizer.ggml.merges", ("arr", 8), k["tokenizer.ggml.merges"]), ("tokenizer.ggml.bos_token_id", 4, 0),
            ("tokenizer.ggml.eos_token_id", 4, 1), ("tokenizer.ggml.add_bos_token", 7, True), ("tokenizer.ggml.add_eos_token", 7, False)]
    names = {"fc.weight": "fc.weight", "features_norm": "enc.output_norm.weight", "token_norm": "blk.0.attn_norm.weight",
             "state_norm": "blk.0.attn_norm_2.weight", "ffn_norm": "blk.0.ffn_norm.weight", "out_norm": "output_norm.weight",
             "q.weight": "blk.0.attn_q.weight", "k.weight": "blk.0.attn_k.weight", "v.weight": "blk.0.attn_v.weight",
             "o.weight": "blk.0.attn_output.weight", "gate.weight": "blk.0.ffn_gate.weight", "up.weight": "blk.0.ffn_up.weight",
             "down.weight": "blk.0.ffn_down.weight", "output.weight": "output.weight"}
    tensors = {names[name]: p.detach().numpy() for name, p in eagle.state_dict().items()}
    tensors["d2t"] = guessed.numpy().astype(np.int64)
    gguf_io.write(path, keys, tensors, quantize=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--start", required=True, help="the layer for further tokens of the model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=14.0, help="for everything")
    parser.add_argument("--slice", type=float, default=1000.0, help="stop after so many minutes; the next call continues")
    parser.add_argument("--stories", type=int, default=1536)
    parser.add_argument("--batch", type=int, default=12, help="stories of a step")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    at = lambda name: os.path.join(args.out, name)
    tales, tables = Tales(args.model), rope_tables(LENGTH)
    spent = json.load(open(at("spent.json"))) if os.path.exists(at("spent.json")) else 0.0
    used = lambda: spent + time.process_time() / 60
    if not os.path.exists(at("stories.npz")):
        made = write_stories(args.model, args.stories)
        np.savez(at("stories.npz"), tokens=made[0], states=made[1])
        print("[%5.2f min] %d stories" % (used(), args.stories), flush=True)
    data = np.load(at("stories.npz"))
    tokens, states = torch.from_numpy(data["tokens"].astype(np.int64)), torch.from_numpy(data["states"])
    held = len(tokens) // 16
    guessed = torch.bincount(tokens.flatten(), minlength=tales.embedding.shape[0]).topk(GUESSED).indices.sort().values
    torch.manual_seed(2)
    eagle, steps = Eagle(), 0
    sample = states[held : held + 8].float()
    begin_from(eagle, args.start, tales, guessed, sample.flatten(0, 1), tales.embedding[tokens[held : held + 8, 1:]].flatten(0, 1))
    wide = [p for p in eagle.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([dict(params=wide, weight_decay=0.02), dict(params=[p for p in eagle.parameters() if p.ndim < 2], weight_decay=0.0)],
                                  lr=args.rate, betas=(0.9, 0.95))
    if os.path.exists(at("state.pt")):
        kept = torch.load(at("state.pt"))
        eagle.load_state_dict(kept["eagle"]), optimizer.load_state_dict(kept["optimizer"])
        steps = kept["steps"]
        torch.manual_seed(3 + steps)
    begin = used() if not steps else kept["begin"]
    limit, until = args.minutes, min(args.minutes, used() + args.slice)
    while used() < until:
        done = (used() - begin) / (limit - begin)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (steps + 1) / 20) * (1 - done)
        rows = held + torch.randint(0, len(tokens) - held, (args.batch,))
        losses, agree = run(eagle, tales, guessed, tokens[rows][:, :-1], states[rows].float(), tables)
        loss = losses[0] + 0.7 * losses[1] + 0.5 * losses[2]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(eagle.parameters(), 1.0)
        optimizer.step()
        if steps % 20 == 0:
            print("[%5.2f min] step %d losses %s agree %s" % (used(), steps, ["%.3f" % l.item() for l in losses], ["%.3f" % a.item() for a in agree]), flush=True)
        steps += 1
    torch.save(dict(eagle=eagle.state_dict(), optimizer=optimizer.state_dict(), steps=steps, begin=begin), at("state.pt"))
    with torch.no_grad():
        parts = [run(eagle, tales, guessed, tokens[i : i + 8][:, :-1], states[i : i + 8].float(), tables)[1] for i in range(0, held, 8)]
    agree = [sum(p[k].item() for p in parts) / len(parts) for k in range(STEPS)]
    covered = torch.isin(tokens[:held], guessed).float().mean().item()
    report = dict(steps=steps, tokens=steps * args.batch * (LENGTH - 2), stories=len(tokens) - held, agreement=agree, covered=covered,
                  parameters=sum(p.numel() for p in eagle.parameters()), minutes=used())
    print(json.dumps(report), flush=True)
    save(at("tales-eagle3.gguf"), eagle, tales, guessed)
    json.dump(report, open(at("eagle3.json"), "w"), indent=1)
    json.dump(used(), open(at("spent.json"), "w"))


if __name__ == "__main__":
    main()
